#include <array>
#include <bit>

#include "fabric/memory/atomics.h"
#include "python/context/context_object.h"

namespace fab::python {

std::optional<DataType> atomic_type(PyObject* dtype) {
  const auto* fields = py::detail::array_descriptor_proxy(dtype);
  if (fields->byteorder == '>') return std::nullopt;  // '=' and '|' are this machine's order
  const auto size = static_cast<std::uint64_t>(itemsize_of(dtype));
  if (fields->kind == 'i' || fields->kind == 'u') {
    if (!std::has_single_bit(size) || size > 8) return std::nullopt;
    return static_cast<DataType>(2 * std::countr_zero(size) + (fields->kind == 'u' ? 1 : 0));
  }
  if (fields->kind == 'f' && size == 4) return DataType::f32;
  if (fields->kind == 'f' && size == 8) return DataType::f64;
  return std::nullopt;
}

namespace {

DataType data_type(PyObject* dtype) {
  if (const auto type = atomic_type(dtype)) return *type;
  throw Error(Errc::not_supported,
              "atomics take integers of 1, 2, 4 or 8 bytes, float32 and float64 in native byte order, not " +
                  py::str(py::handle(dtype)).cast<std::string>());
}

AtomicOp atomic_op(PyObject* object) {
  const long value = PyLong_Check(object) ? PyLong_AsLong(object) : -1;
  if (value < 0 || value >= kAtomicOps) {
    PyErr_Clear();
    throw Error(Errc::not_supported, py::repr(object).cast<std::string>() + " is no AtomicOp");
  }
  return static_cast<AtomicOp>(value);
}

// The array of an operand or comparand. NumPy makes one of any other object, in the dtype of the remote
// array.
py::array operand_array(PyObject* object, const Target& target, const py::object& dtype) {
  if (is_array(object)) return py::reinterpret_borrow<py::array>(object);
  const py::object wanted = dtype ? dtype : (target.view ? target.view->dtype : py::object());
  return py::module_::import("numpy")
      .attr("asarray")(py::handle(object), wanted ? wanted : py::none())
      .cast<py::array>();
}

// Checks that a result or comparand has as many elements as the operand, and the same dtype.
void check_like(const LocalBuffer& buffer, const LocalBuffer& operand, const char* what) {
  if (!buffer.pieces.empty() || buffer.nbytes != operand.nbytes)
    throw Error(Errc::invalid, std::string(what) + " has " + std::to_string(buffer.nbytes) +
                                   " bytes, the operand " + std::to_string(operand.nbytes) +
                                   "; they must be alike");
  if (buffer.dtype && buffer.dtype != operand.dtype &&
      PyObject_RichCompareBool(buffer.dtype, operand.dtype, Py_EQ) != 1) {
    PyErr_Clear();
    throw Error(Errc::invalid, std::string(what) + " has dtype " +
                                   py::str(py::handle(buffer.dtype)).cast<std::string>() + ", the operand " +
                                   py::str(py::handle(operand.dtype)).cast<std::string>() +
                                   "; they must be alike");
  }
}

void check_form(const char* name, OpCode code, AtomicOp op) {
  if (needs_compare(op) != (code == OpCode::compare_atomic))
    throw Error(Errc::not_supported,
                std::string(name) +
                    " does not take this operation: comparing ones (CSWAP…, MSWAP) go with "
                    "compare_atomic, the others with atomic and fetch_atomic");
  if (op == AtomicOp::atomic_read && code == OpCode::atomic)
    throw Error(Errc::not_supported, "ATOMIC_READ gives a result: use fetch_atomic");
}

// Where the elements lie at the target: in one run, in the runs of a strided view, or in runs that the caller
// gives.
struct Runs {
  std::vector<std::uint64_t> offsets;  // bytes from `remote`
  std::uint64_t length = 0;            // bytes of each run
};

Runs runs_of(const Target& target, std::uint64_t nbytes, PyObject* rows) {
  Runs runs;
  if (rows && rows != Py_None) {
    const auto [offsets, length] =
        py::reinterpret_borrow<py::object>(rows).cast<std::pair<py::array_t<std::uint64_t>, std::uint64_t>>();
    runs.offsets.assign(offsets.data(), offsets.data() + offsets.size());
    runs.length = length;
  } else if (target.view && !target.view->contiguous) {
    runs.offsets = target.view->runs(runs.length);
    for (std::uint64_t& offset : runs.offsets) offset -= target.view->offset;
  } else {
    runs.offsets = {0};
    runs.length = nbytes;
  }
  return runs;
}

struct Given {
  PyObject *op, *operand, *compare, *result, *peer, *remote, *context, *flags, *rows = nullptr,
                                                                               *brings = nullptr;
};

// The local buffers of an atomic, checked against the remote array.
struct Operands {
  DataType type;
  LocalBuffer operand, compare, result;
};

Operands operands_of(const char* name, AtomicOp op, const Given& given, const Target& target) {
  const py::array array = operand_array(given.operand, target, {});
  Operands all{.type = {}, .operand = LocalBuffer::of(array.ptr(), false), .compare = {}, .result = {}};
  all.type = data_type(all.operand.dtype);
  if (!atomic_supported(op, all.type))
    throw Error(Errc::not_supported, std::string(name) + ": bitwise operations take integers, not " +
                                         py::str(array.dtype()).cast<std::string>());
  if (!given.rows) check_fit(all.operand, target, name);
  if (target.view && target.view->itemsize != array.itemsize())
    throw Error(Errc::invalid, std::string(name) + " takes a remote array of the operand's dtype");
  if (given.compare) {
    all.compare = LocalBuffer::of(operand_array(given.compare, target, array.dtype()).ptr(), false);
    check_like(all.compare, all.operand, "compare");
  }
  if (given.result) {
    all.result = LocalBuffer::of(given.result, true);
    check_like(all.result, all.operand, "result");
  }
  return all;
}

// Cuts `first`, whose local memory is that of the whole operation, into transfers of one run or less.
std::vector<Transfer> cut_to_runs(const Transfer& first, const Runs& runs) {
  std::vector<Transfer> batch;
  std::uint64_t done = 0;
  for (const std::uint64_t offset : runs.offsets) {
    std::uint64_t within = 0;
    // A run of no elements still goes to the target, which checks it.
    do {
      Transfer& part = batch.emplace_back(first);
      part.length = std::min<std::uint64_t>(runs.length - within, kMaxAtomicBytes);
      part.local += done;
      part.remote += offset + within;
      if (part.op == OpCode::compare_atomic) part.compare += done;
      if (part.op != OpCode::atomic) part.result += done;
      done += part.length;
      within += part.length;
    } while (within < runs.length);
  }
  if (batch.size() > 1) {
    for (Transfer& part : batch) part.flags |= transfer_flag::kPiece;
    batch.back().flags |= transfer_flag::kLastPiece;
  }
  return batch;
}

PyObject* start_atomic(const char* name, OpCode code, PyObject* self, const Given& given) {
  OperationObject* operation = nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    if (!handle.finished->empty()) handle.finished->drain();
    const AtomicOp op = atomic_op(given.op);
    const Target target = Target::of(peer_from(given.peer), given.remote);
    check_form(name, code, op);
    Operands operands = operands_of(name, op, given, target);

    const bool brings = given.brings && PyObject_IsTrue(given.brings) == 1;
    const std::uint64_t nbytes = operands.operand.nbytes;
    operation = prepare_operation(handle, {code, brings}, target, nbytes, given.context);
    if (brings) operation->value = Py_NewRef(given.result);
    Transfer first{};
    first.operation = &operation->core;
    first.op = code;
    first.atomic = op;
    first.type = operands.type;
    first.delivery = delivery_from(given.flags);
    first.key = target.key;
    first.remote = target.remote;
    first.local = operands.operand.data;
    if (given.compare) first.compare = operands.compare.data;
    if (given.result) first.result = operands.result.data;
    const std::vector<Transfer> batch = cut_to_runs(first, runs_of(target, nbytes, given.rows));
    if (batch.size() > 1) operation->core.begin_array();
    const bool ends_by_itself = batch.empty();  // the call has no rows
    begin(*operation, ends_by_itself ? 1 : static_cast<std::uint32_t>(batch.size()),
          context_number(handle, given.context), handle.queue.get());
    if (ends_by_itself) {
      WithoutGil::run([&] { handle.context->abandon(operation->core, 1, Errc::ok); });
    } else {
      LocalBuffer buffers[] = {std::move(operands.operand), std::move(operands.compare),
                               std::move(operands.result)};
      post_operation(handle, batch, *operation, buffers);
    }
    return reinterpret_cast<PyObject*>(operation);
  } catch (...) {
    set_python_error();
    Py_XDECREF(reinterpret_cast<PyObject*>(operation));
    return nullptr;
  }
}

PyObject* atomic_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"op", "operand", "peer", "remote", "context", "flags", "_rows"};
  PyObject* a[7];
  if (!parse_arguments("atomic", names, 4, {args, nargs, kwnames}, a)) return nullptr;
  return start_atomic("atomic", OpCode::atomic, self,
                      {a[0], a[1], nullptr, nullptr, a[2], a[3], a[4], a[5], a[6]});
}

PyObject* fetch_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"op",      "operand", "result", "peer",   "remote",
                                      "context", "flags",   "_rows",  "_brings"};
  PyObject* a[9];
  if (!parse_arguments("fetch_atomic", names, 5, {args, nargs, kwnames}, a)) return nullptr;
  return start_atomic("fetch_atomic", OpCode::fetch_atomic, self,
                      {a[0], a[1], nullptr, a[2], a[3], a[4], a[5], a[6], a[7], a[8]});
}

PyObject* compare_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"op",     "operand", "compare", "result", "peer",
                                      "remote", "context", "flags",   "_rows",  "_brings"};
  PyObject* a[10];
  if (!parse_arguments("compare_atomic", names, 6, {args, nargs, kwnames}, a)) return nullptr;
  return start_atomic("compare_atomic", OpCode::compare_atomic, self,
                      {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]});
}

}  // namespace

PyMethodDef atomic_methods[] = {
    {"atomic", method(atomic_method), METH_FASTCALL | METH_KEYWORDS,
     "atomic($self, /, op, operand, peer, remote, context=None, flags=None, _rows=None)\n--\n\n"
     "Starts `remote[i] = op(remote[i], operand[i])`, each element atomically with respect to all atomics of "
     "the library on that\n"
     "memory. operand: an array of integers of 1 to 8 bytes, float32 or float64 (a number takes the remote "
     "dtype). Misaligned\n"
     "targets are refused with FI_EINVAL, pairs that do not exist with NotSupportedError."},
    {"fetch_atomic", method(fetch_method), METH_FASTCALL | METH_KEYWORDS,
     "fetch_atomic($self, /, op, operand, result, peer, remote, context=None, flags=None, _rows=None, "
     "_brings=False)\n--\n\n"
     "As atomic(); the former values go to `result`."},
    {"compare_atomic", method(compare_method), METH_FASTCALL | METH_KEYWORDS,
     "compare_atomic($self, /, op, operand, compare, result, peer, remote, context=None, flags=None, "
     "_rows=None, _brings=False)\n--\n\n"
     "Starts `if compare[i] REL remote[i]: remote[i] = operand[i]` for the CSWAP family, and the masked swap "
     "MSWAP; the former values\n"
     "go to `result`."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace fab::python
