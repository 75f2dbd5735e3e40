// The part of Python's RemoteArray that runs once per operation. Usual indices, with arrays of exactly the
// selected shape and dtype, go straight to the core. Everything else is left to methods of the Python
// subclass (_put, _assign, …): the long way.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/memory/atomics.h"
#include "python/context/context_object.h"

namespace fab::python {
namespace {

struct RemoteArrayObject {
  PyObject_HEAD PyObject* context;  // owned: a scope
  PyObject* rank;                   // owned: the number of the peer in its group
  PyObject* handle;                 // owned: the handle of the peer in the address vector
  PyObject* region;                 // owned: a RemoteRegion
  const RemoteView* view;           // of `region`
  ContextHandle* scope;             // of `context`
  PeerId peer;
  DataType type;  // of the elements, if `atomic`
  bool atomic;    // whether the elements can be updated atomically
};

RemoteArrayObject& array_of(PyObject* self) { return *reinterpret_cast<RemoteArrayObject*>(self); }

[[gnu::hot]] PyObject* array_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *context = nullptr, *handle = nullptr, *rank = nullptr, *region = nullptr, *rest = nullptr;
  if (!PyArg_ParseTuple(args, "OOOO|O", &context, &handle, &rank, &region, &rest)) return nullptr;
  const RemoteView* view = remote_view(region);
  if (!view) {
    PyErr_SetString(PyExc_TypeError, "a remote array is made of a RemoteRegion");
    return nullptr;
  }
  try {
    const PeerId peer = peer_from(handle);
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    RemoteArrayObject& array = array_of(self);
    array.context = Py_NewRef(context);
    array.handle = Py_NewRef(handle);
    array.rank = Py_NewRef(rank);
    array.region = Py_NewRef(region);
    array.view = view;
    array.scope = &context_handle(context);
    array.peer = peer;
    const auto data_type = atomic_type(view->dtype.ptr());
    array.atomic = data_type.has_value();
    array.type = data_type.value_or(DataType::i8);
    return self;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

int array_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(array_of(self).context);
  Py_VISIT(array_of(self).region);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

[[gnu::hot]] void array_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  RemoteArrayObject& array = array_of(self);
  Py_XDECREF(array.context);
  Py_XDECREF(array.handle);
  Py_XDECREF(array.rank);
  Py_XDECREF(array.region);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// A part of the array as a target.
Target target_of(const RemoteArrayObject& array, const RemoteView& part) {
  return {array.peer, part.remote(), part.region->key, &part};
}

bool has_ellipsis(PyObject* index) {
  if (index == Py_Ellipsis) return true;
  if (!PyTuple_Check(index)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i)
    if (PyTuple_GET_ITEM(index, i) == Py_Ellipsis) return true;
  return false;
}

// Turns a Python number into the bytes of one element. Returns false if it is no plain number or does not
// fit.
bool element_from(PyObject* number, const RemoteArrayObject& array, std::uint64_t& word) {
  if (!array.atomic) return false;
  word = 0;
  if (array.type == DataType::f32 || array.type == DataType::f64) {
    double value;
    if (PyFloat_CheckExact(number)) {
      value = PyFloat_AS_DOUBLE(number);
    } else if (PyLong_CheckExact(number)) {
      value = PyLong_AsDouble(number);
      if (value == -1 && PyErr_Occurred()) return PyErr_Clear(), false;
    } else {
      return false;
    }
    const auto single = static_cast<float>(value);
    if (array.type == DataType::f32)
      std::memcpy(&word, &single, sizeof single);
    else
      std::memcpy(&word, &value, sizeof value);
    return true;
  }
  if (!PyLong_CheckExact(number)) return false;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow) return false;  // large unsigned numbers are rare and go the long way
  const auto bits = static_cast<unsigned>(8 * array.view->itemsize);
  const bool is_unsigned = static_cast<int>(array.type) % 2 != 0;
  if (is_unsigned ? value < 0 || (bits < 64 && value >> bits != 0)
                  : bits < 64 && (value < -(1LL << (bits - 1)) || value >= 1LL << (bits - 1)))
    return false;  // the long way raises the error that NumPy raises
  std::memcpy(&word, &value, sizeof value);
  return true;
}

bool one_element(const RemoteView& part) { return std::cmp_equal(part.nbytes, part.itemsize); }

// A buffer of memory that needs no owner to keep it alive.
LocalBuffer bare(void* data, std::uint64_t nbytes) {
  LocalBuffer buffer;
  buffer.data = static_cast<std::byte*>(data);
  buffer.nbytes = nbytes;
  return buffer;
}

[[gnu::hot]] PyObject* array_subscript(PyObject* self, PyObject* index) {
  try {
    RemoteArrayObject& array = array_of(self);
    if (!RemoteView::takes(index)) return PyObject_CallMethod(self, "_select", "(O)", index);
    const RemoteView part = array.view->at(index);
    ContextHandle& scope = *array.scope;
    scope.check_open();
    if (part.ndim == 0 && array.atomic && !has_ellipsis(index)) {
      std::uint64_t word = 0;
      move_now("get", OpCode::read, scope, bare(&word, part.nbytes), target_of(array, part));
      return make_scalar(&word, part.dtype.ptr());
    }
    const auto out =
        py::reinterpret_steal<py::object>(make_array(part.dtype.ptr(), part.ndim, part.shape.data()));
    move_now("get", OpCode::read, scope, out.ptr(), target_of(array, part));
    return has_ellipsis(index) ? Py_NewRef(out.ptr()) : element_or_array(out.ptr());
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

[[gnu::hot]] int array_assign(PyObject* self, PyObject* index, PyObject* values) {
  if (!values) {
    PyErr_SetString(PyExc_TypeError, "elements of a remote array cannot be deleted");
    return -1;
  }
  try {
    RemoteArrayObject& array = array_of(self);
    if (RemoteView::takes(index)) {
      const RemoteView part = array.view->at(index);
      std::uint64_t word;
      if (part.is_like(values)) {
        move_now("put", OpCode::write, *array.scope, values, target_of(array, part));
        return 0;
      }
      if (one_element(part) && element_from(values, array, word)) {
        array.scope->check_open();
        move_now("put", OpCode::write, *array.scope, bare(&word, part.nbytes), target_of(array, part));
        return 0;
      }
    }
    PyObject* done = PyObject_CallMethod(self, "_assign", "(OO)", index, values);
    Py_XDECREF(done);
    return done ? 0 : -1;
  } catch (...) {
    set_python_error();
    return -1;
  }
}

// Calls the subclass's method with the arguments as they came.
PyObject* the_long_way(const char* method, PyObject* self, const Passed& passed) {
  PyObject* bound = PyObject_GetAttrString(self, method);
  if (!bound) return nullptr;
  PyObject* result =
      PyObject_Vectorcall(bound, passed.args, static_cast<std::size_t>(passed.nargs), passed.kwnames);
  Py_DECREF(bound);
  return result;
}

[[gnu::hot]] PyObject* move(const char* name, const char* long_way, OpCode op, PyObject* self,
                            const Passed& passed) {
  const auto [args, nargs, kwnames] = passed;
  try {
    RemoteArrayObject& array = array_of(self);
    PyObject* const index = nargs == 2 ? args[1] : Py_Ellipsis;
    if (!kwnames && (nargs == 1 || nargs == 2) && RemoteView::takes(index)) {
      const RemoteView part = array.view->at(index);
      if (part.nbytes != 0 && part.is_like(args[0]))
        return reinterpret_cast<PyObject*>(
            start_move(name, op, *array.scope, args[0], target_of(array, part)));
    }
    return the_long_way(long_way, self, passed);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

[[gnu::hot]] PyObject* array_put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return move("put", "_put", OpCode::write, self, {args, nargs, kwnames});
}
PyObject* array_get(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return move("get", "_get", OpCode::read, self, {args, nargs, kwnames});
}

// An atomic on arrays of exactly the selected shape and dtype, or on one element with Python numbers.
// update() returns null without a Python error if the operation has to go the long way.
struct Update {
  OpCode code;
  AtomicOp op;
  PyObject *index, *operand, *compare, *out;
};

// An operand or comparand: an array of exactly the selected shape and dtype, or a number for the one element.
struct Values {
  PyObject* array = nullptr;  // borrowed; null for a number
  std::uint64_t number = 0;   // the bytes of the element
};

// Returns false if `given` has another form.
[[gnu::hot]] bool take(Values& values, PyObject* given, const RemoteArrayObject& array,
                       const RemoteView& part) {
  if (one_element(part) && element_from(given, array, values.number)) return true;
  values.array = given;
  return part.is_like(given);
}

// Where the operand (0), the comparand (1) and the result (2) of an operation are. The operation keeps this
// memory.
class Places {
 public:
  explicit Places(OperationObject& operation) : operation_(operation) {}
  std::byte* of(std::size_t i, const Values& values) {
    if (values.array) return of(i, values.array);
    operation_.words[i] = values.number;
    return reinterpret_cast<std::byte*>(&operation_.words[i]);
  }
  std::byte* of(std::size_t i, PyObject* array) {
    buffers_.push_back(LocalBuffer::of(array, i == 2));
    return buffers_.back().data;
  }
  // Where the former values go: into `out` or, if that is null, into the result that the operation returns.
  std::byte* of_result(PyObject* out, const RemoteView& part) {
    if (out) return of(2, out);
    if (part.ndim == 0) {
      operation_.value_dtype = Py_NewRef(part.dtype.ptr());
      return of(2, Values{});
    }
    operation_.value = make_array(part.dtype.ptr(), part.ndim, part.shape.data());
    return of(2, operation_.value);
  }
  std::span<LocalBuffer> buffers() { return buffers_; }

 private:
  OperationObject& operation_;
  std::vector<LocalBuffer> buffers_;  // of the arrays; numbers need none
};

[[gnu::hot]] PyObject* update(RemoteArrayObject& array, const Update& wanted) {
  if (!array.atomic || !RemoteView::takes(wanted.index) || !atomic_supported(wanted.op, array.type))
    return nullptr;
  const RemoteView part = array.view->at(wanted.index);
  if (!part.contiguous || part.nbytes == 0 || part.nbytes > kMaxAtomicBytes) return nullptr;
  const bool fetches = wanted.code != OpCode::atomic;
  Values operand, compare;
  if (!take(operand, wanted.operand, array, part)) return nullptr;
  if (wanted.compare && !take(compare, wanted.compare, array, part)) return nullptr;
  if (wanted.out && (!part.is_like(wanted.out) || !is_writable(wanted.out))) return nullptr;

  ContextHandle& scope = *array.scope;
  scope.check_open();
  if (!scope.finished->empty()) scope.finished->drain();
  const bool brings = fetches && !wanted.out;
  const Target target = target_of(array, part);
  OperationObject* operation = prepare_operation(scope, {wanted.code, brings}, target, part.nbytes, nullptr);
  try {
    Places places(*operation);
    Transfer transfer{};
    transfer.operation = &operation->core;
    transfer.op = wanted.code;
    transfer.atomic = wanted.op;
    transfer.type = array.type;
    transfer.delivery = Delivery::delivery;
    transfer.key = target.key;
    transfer.remote = target.remote;
    transfer.length = part.nbytes;
    transfer.local = places.of(0, operand);
    if (wanted.compare) transfer.compare = places.of(1, compare);
    if (fetches) transfer.result = places.of_result(wanted.out, part);
    begin(*operation, 1, kNoContext, scope.queue.get());
    post_operation(scope, {&transfer, 1}, *operation, places.buffers());
    return reinterpret_cast<PyObject*>(operation);
  } catch (...) {
    Py_DECREF(reinterpret_cast<PyObject*>(operation));
    throw;
  }
}

// The AtomicOp that an argument means, or a negative number if update() does not take it.
long plain_op(PyObject* object, bool fetches) {
  if (!object) return static_cast<long>(AtomicOp::sum);
  const long value = PyLong_Check(object) ? PyLong_AsLong(object) : -1;
  if (value < 0) PyErr_Clear();
  if (value >= kAtomicOps || needs_compare(static_cast<AtomicOp>(value))) return -1;
  return value == static_cast<long>(AtomicOp::atomic_read) && !fetches ? -1 : value;
}

PyObject* given_or(PyObject* object, PyObject* otherwise) {
  return object && object != Py_None ? object : otherwise;
}

[[gnu::hot]] PyObject* array_accumulate(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                        PyObject* kwnames) {
  static const char* const names[] = {"values", "index", "op"};
  PyObject* given[3];
  if (!parse_arguments("accumulate", names, 1, {args, nargs, kwnames}, given)) return nullptr;
  try {
    const long op = plain_op(given[2], false);
    if (op >= 0)
      if (PyObject* operation =
              update(array_of(self), {OpCode::atomic, static_cast<AtomicOp>(op),
                                      given[1] ? given[1] : Py_Ellipsis, given[0], nullptr, nullptr}))
        return operation;
    return the_long_way("_accumulate", self, {args, nargs, kwnames});
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

[[gnu::hot]] PyObject* array_fetch_add(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                       PyObject* kwnames) {
  static const char* const names[] = {"values", "index", "out"};
  PyObject* given[3];
  if (!parse_arguments("fetch_add", names, 1, {args, nargs, kwnames}, given)) return nullptr;
  try {
    if (PyObject* operation =
            update(array_of(self), {OpCode::fetch_atomic, AtomicOp::sum, given[1] ? given[1] : Py_Ellipsis,
                                    given[0], nullptr, given_or(given[2], nullptr)}))
      return operation;
    return the_long_way("_fetch_add", self, {args, nargs, kwnames});
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* array_fetch_accumulate(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"values", "index", "op", "out"};
  PyObject* given[4];
  if (!parse_arguments("fetch_accumulate", names, 1, {args, nargs, kwnames}, given)) return nullptr;
  try {
    const long op = plain_op(given[2], true);
    if (op >= 0)
      if (PyObject* operation = update(array_of(self), {OpCode::fetch_atomic, static_cast<AtomicOp>(op),
                                                        given[1] ? given[1] : Py_Ellipsis, given[0], nullptr,
                                                        given_or(given[3], nullptr)}))
        return operation;
    return the_long_way("_fetch_accumulate", self, {args, nargs, kwnames});
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* array_compare_and_swap(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"expected", "desired", "index", "out"};
  PyObject* given[4];
  if (!parse_arguments("compare_and_swap", names, 2, {args, nargs, kwnames}, given)) return nullptr;
  try {
    if (PyObject* operation = update(
            array_of(self), {OpCode::compare_atomic, AtomicOp::cswap, given[2] ? given[2] : Py_Ellipsis,
                             given[1], given[0], given_or(given[3], nullptr)}))
      return operation;
    return the_long_way("_compare_and_swap", self, {args, nargs, kwnames});
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyMethodDef array_methods[] = {
    {"put", method(array_put), METH_FASTCALL | METH_KEYWORDS,
     "put($self, /, values, index=..., notify=None)\n--\n\n"
     "Writes `values` to the selected elements. notify: the number of the peer's counter that rises by one "
     "per "
     "contiguous\nrun once the values are there."},
    {"get", method(array_get), METH_FASTCALL | METH_KEYWORDS,
     "get($self, /, out, index=...)\n--\n\n"
     "Reads the selected elements into `out`, a C-contiguous array of their shape and dtype."},
    {"accumulate", method(array_accumulate), METH_FASTCALL | METH_KEYWORDS,
     "accumulate($self, /, values, index=..., op=pyfab.AtomicOp.SUM)\n--\n\n"
     "Updates each selected element with `op` and its value, atomically by element."},
    {"fetch_add", method(array_fetch_add), METH_FASTCALL | METH_KEYWORDS,
     "fetch_add($self, /, values, index=..., out=None)\n--\n\n"
     "Adds to each selected element, atomically by element, and brings what was there before.\n\n"
     "With `out` returns an Operation, without it a Fetch whose result is the former value or values."},
    {"fetch_accumulate", method(array_fetch_accumulate), METH_FASTCALL | METH_KEYWORDS,
     "fetch_accumulate($self, /, values, index=..., op=pyfab.AtomicOp.SUM, out=None)\n--\n\n"
     "As accumulate(), and brings what was there before, as fetch_add() does."},
    {"compare_and_swap", method(array_compare_and_swap), METH_FASTCALL | METH_KEYWORDS,
     "compare_and_swap($self, /, expected, desired, index=..., out=None)\n--\n\n"
     "Where a selected element equals `expected`, sets it to `desired`, atomically; brings what was there "
     "before, as\nfetch_add() does."},
    {nullptr, nullptr, 0, nullptr}};

template <PyObject* RemoteArrayObject::* field>
PyObject* get_field(PyObject* self, void*) {
  return Py_NewRef(array_of(self).*field);
}

PyGetSetDef array_getset[] = {
    {"peer", get_field<&RemoteArrayObject::rank>, nullptr, "The rank that the array belongs to.", nullptr},
    {"region", get_field<&RemoteArrayObject::region>, nullptr,
     "What Endpoint operations take for the same memory.", nullptr},
    {"_context", get_field<&RemoteArrayObject::context>, nullptr, nullptr, nullptr},
    {"_handle", get_field<&RemoteArrayObject::handle>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot array_slots[] = {{Py_tp_new, reinterpret_cast<void*>(array_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(array_dealloc)},
                             {Py_tp_traverse, reinterpret_cast<void*>(array_traverse)},
                             {Py_mp_subscript, reinterpret_cast<void*>(array_subscript)},
                             {Py_mp_ass_subscript, reinterpret_cast<void*>(array_assign)},
                             {Py_tp_methods, array_methods},
                             {Py_tp_getset, array_getset},
                             {Py_tp_doc, const_cast<char*>("The frequent half of pyfab.RemoteArray.")},
                             {0, nullptr}};
PyType_Spec array_spec = {"pyfab._core.RemoteArrayCore", sizeof(RemoteArrayObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, array_slots};

}  // namespace

void bind_remote_array(py::module_& m) {
  PyObject* type = PyType_FromSpec(&array_spec);
  if (!type) throw py::error_already_set();
  m.attr("RemoteArrayCore") = py::reinterpret_steal<py::object>(type);
}

}  // namespace fab::python
