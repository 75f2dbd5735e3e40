#include "python/operations/operation_object.h"

#include <new>

#include "python/operations/completion_object.h"
#include "python/operations/failure.h"

namespace fab::python {
namespace {

PyTypeObject* operation_type = nullptr;
PyTypeObject* fetch_type = nullptr;
PyObject* await_function = nullptr;  // set by the package: turns an operation into an iterator for `await`

OperationObject& operation_of(PyObject* self) { return *reinterpret_cast<OperationObject*>(self); }

OperationObject& owner_of(Operation& core) {
  constexpr auto kOffset = offsetof(OperationObject, core);
  return *reinterpret_cast<OperationObject*>(reinterpret_cast<char*>(&core) - kOffset);
}

Failure failure_of(const OperationObject& operation) noexcept {
  return {operation.op,  operation.core.completion().error, operation.nbytes, operation.remote, operation.key,
          operation.peer};
}

[[gnu::hot]] void settled_hook(Operation& core) noexcept {
  OperationObject& operation = owner_of(core);
  Tally* const tally = operation.origin->tally.get();
  const Errc error = core.completion().error;
  // The tally is not told of an operation that was never posted: the call itself throws. It is told before
  // the exchange, because a poster that finds kSettled may free the operation.
  if (tally && error != Errc::ok &&
      (error != Errc::canceled || operation.phase.load() != OperationObject::kPosting))
    tally->fail(operation.entry, failure_of(operation));
  if (operation.phase.exchange(OperationObject::kSettled) != OperationObject::kInFlight) return;
  if (tally) tally->leave(operation.entry);
  if (operation.wants_notice.load()) {
    Driver& driver = operation.origin->context->driver();
    driver.assert_held();  // by whoever settles what is in flight
    driver.request_callbacks();
  }
  operation.origin->finished->push(operation);
}

int operation_traverse(PyObject* self, visitproc visit, void* arg) {
  const OperationObject& operation = operation_of(self);
  Py_VISIT(operation.user_context);
  Py_VISIT(operation.callbacks);
  Py_VISIT(operation.value);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

int operation_clear(PyObject* self) {
  OperationObject& operation = operation_of(self);
  Py_CLEAR(operation.user_context);
  Py_CLEAR(operation.callbacks);
  Py_CLEAR(operation.value);
  Py_CLEAR(operation.value_dtype);
  return 0;
}

// Only an operation that holds an object of the caller can be part of a cycle. The collector knows no others.
void track(OperationObject& operation) {
  auto* self = reinterpret_cast<PyObject*>(&operation);
  if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
}

[[gnu::hot]] void operation_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  OperationObject& operation = operation_of(self);
  delete operation.buffers;
  operation_clear(self);
  operation.origin.~shared_ptr();
  operation.core.~Operation();
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// Waits for the outcome. Returns false with the Python error set when the time is over; throws what a signal
// handler raises.
[[gnu::hot]] bool wait_done(OperationObject& operation, PyObject* timeout) {
  if (operation.core.done()) {
    // This lets go of the buffers.
    if (!operation.origin->finished->empty()) operation.origin->finished->drain();
    return true;
  }
  const Deadline deadline = deadline_from(timeout ? timeout : Py_None);
  Context& context = *operation.origin->context;
  const bool done = wait_interruptibly(
      [&](Deadline until) {
        return context.wait([&] { return operation.core.done(); }, until) || operation.core.done();
      },
      deadline);
  operation.origin->finished->drain();
  if (!done)
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(make_error(Errc::timeout, "").ptr())),
                    make_error(Errc::timeout,
                               std::string(verb(operation.op)) + " of " + std::to_string(operation.nbytes) +
                                   " bytes with " + peer_text(operation.peer) +
                                   " is not complete yet; it goes on, wait again with a longer timeout")
                        .ptr());
  return done;
}

PyObject* timeout_argument(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const char* function,
                           bool& ok) {
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  ok = nargs + named <= 1 &&
       (named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "timeout") == 0);
  if (!ok) PyErr_Format(PyExc_TypeError, "%s() takes only timeout", function);
  return nargs + named == 1 ? args[0] : nullptr;
}

[[gnu::hot]] PyObject* operation_result(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                        PyObject* kwnames) {
  bool ok = true;
  PyObject* timeout = timeout_argument(args, nargs, kwnames, "result", ok);
  if (!ok) return nullptr;
  OperationObject& operation = operation_of(self);
  try {
    if (!wait_done(operation, timeout)) return nullptr;
    const Completion& completion = operation.core.completion();
    if (completion.error == Errc::ok) {
      if (operation.value) return element_or_array(operation.value);
      if (operation.value_dtype) return make_scalar(&operation.words[2], operation.value_dtype);
      return make_completion(completion, operation.user_context ? operation.user_context : Py_None);
    }
    if (operation.origin->tally) operation.origin->tally->seen(operation.entry.number);
    raise_failure(failure_of(operation), operation.origin->context.get());
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

PyObject* operation_exception(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  bool ok = true;
  PyObject* timeout = timeout_argument(args, nargs, kwnames, "exception", ok);
  if (!ok) return nullptr;
  OperationObject& operation = operation_of(self);
  try {
    if (!wait_done(operation, timeout)) return nullptr;
    const Errc error = operation.core.completion().error;
    if (error == Errc::ok) Py_RETURN_NONE;
    if (operation.origin->tally) operation.origin->tally->seen(operation.entry.number);
    return make_exception(failure_of(operation), operation.origin->context.get()).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* operation_failure(PyObject* self, void*) {
  const OperationObject& operation = operation_of(self);
  const Errc error = operation.core.done() ? operation.core.completion().error : Errc::ok;
  if (error == Errc::ok) Py_RETURN_NONE;
  try {
    return make_exception(failure_of(operation), operation.origin->context.get()).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* operation_done(PyObject* self, PyObject*) {
  OperationObject& operation = operation_of(self);
  const bool done = operation.core.done();
  if (!operation.origin->finished->empty()) operation.origin->finished->drain();
  return PyBool_FromLong(done);
}

PyObject* operation_add_done_callback(PyObject* self, PyObject* function) {
  OperationObject& operation = operation_of(self);
  if (!PyCallable_Check(function)) {
    PyErr_SetString(PyExc_TypeError, "add_done_callback() takes a callable");
    return nullptr;
  }
  {
    const py::scoped_critical_section section(self);
    if (!operation.callbacks) {
      operation.callbacks = PyList_New(0);
      if (operation.callbacks && operation.origin->tally)
        operation.origin->tally->expect_call(operation.entry);
    }
    if (!operation.callbacks) return nullptr;
    if (PyList_Append(operation.callbacks, function) != 0) return nullptr;
    track(operation);
    operation.wants_notice.store(true);
  }
  // The operation may have settled before the callback was added. Then nobody else will run its callbacks.
  if (operation.core.done()) operation.origin->finished->call_late(operation);
  Py_RETURN_NONE;
}

PyObject* operation_await(PyObject* self) {
  if (!await_function) {
    PyErr_SetString(PyExc_RuntimeError, "pyfab is not set up");
    return nullptr;
  }
  return PyObject_CallOneArg(await_function, self);
}

PyObject* operation_repr(PyObject* self) {
  const OperationObject& operation = operation_of(self);
  const char* state = "pending";
  if (operation.core.done())
    state = operation.core.completion().error == Errc::ok ? "done" : name(operation.core.completion().error);
  return PyUnicode_FromFormat("<Operation %s of %llu bytes, peer %lld: %s>", verb(operation.op),
                              static_cast<unsigned long long>(operation.nbytes),
                              static_cast<long long>(operation.peer), state);
}

PyObject* operation_cancel(PyObject* self, PyObject*) {
  OperationObject& operation = operation_of(self);
  if (operation.op != OpCode::receive || operation.core.done()) Py_RETURN_FALSE;
  try {
    bool canceled;
    {
      const WithoutGil without_gil;
      canceled = operation.origin->context->inbox().cancel(operation.core);
    }
    operation.origin->finished->drain();
    return PyBool_FromLong(canceled);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* operation_cancelled(PyObject* self, PyObject*) {
  const Operation& core = operation_of(self).core;
  return PyBool_FromLong(core.done() && core.completion().error == Errc::canceled);
}

// For event loops under manual progress. Moves what can be moved now; the descriptor becomes readable when
// there is more.
PyObject* operation_drive(PyObject* self, PyObject*) {
  OperationObject& operation = operation_of(self);
  const std::shared_ptr<Context> context = operation.origin->context;
  try {
    {
      const WithoutGil without_gil;
      do {
        context->progress();
      } while (!operation.core.done() && context->driver().arm() == Driver::Rest::work_left);
    }
    operation.origin->finished->drain();
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}
PyMethodDef operation_methods[] = {
    {"done", operation_done, METH_NOARGS, "done($self, /)\n--\n\nWhether the outcome is known."},
    {"result", method(operation_result), METH_FASTCALL | METH_KEYWORDS,
     "result($self, /, timeout=None)\n--\n\nWaits and returns the Completion, or raises what the operation "
     "failed "
     "with.\n\n"
     "timeout is in seconds; OperationTimeout when it is over, and the operation goes on."},
    {"exception", method(operation_exception), METH_FASTCALL | METH_KEYWORDS,
     "exception($self, /, timeout=None)\n--\n\nWaits and returns the exception that result() would raise, or "
     "None."},
    {"cancel", operation_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\nTakes back a receive that has met no message yet, which then ends in "
     "CanceledError. "
     "False for all else: what\nwas started at a peer cannot be taken back."},
    {"cancelled", operation_cancelled, METH_NOARGS,
     "cancelled($self, /)\n--\n\nWhether it ended in CanceledError."},
    {"running", [](PyObject* self, PyObject*) { return PyBool_FromLong(!operation_of(self).core.done()); },
     METH_NOARGS, "running($self, /)\n--\n\nWhether the outcome is still open."},
    {"add_done_callback", operation_add_done_callback, METH_O,
     "add_done_callback($self, fn, /)\n--\n\nCalls fn(operation) once it is done: at once if it is, else on "
     "the "
     "thread that finds out."},
    {"_drive", operation_drive, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef operation_getset[] = {
    {"_poll_fd",
     [](PyObject* self, void*) {
       return PyLong_FromLong(operation_of(self).origin->context->driver().poll_fd());
     },
     nullptr, "For event loops under manual progress.", nullptr},
    {"_failure", operation_failure, nullptr, "What exception() gives at once, without counting as seen.",
     nullptr},
    {"_manual", [](PyObject* self, void*) { return PyBool_FromLong(operation_of(self).origin->manual); },
     nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// A Fetch has the layout and the methods of an Operation. Its result is the value that it has fetched.
PyType_Slot fetch_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(operation_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(operation_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(operation_clear)},
    {Py_tp_doc,
     const_cast<char*>("An operation whose result() is what it brought: an array, or a scalar where "
                       "NumPy would give one.")},
    {0, nullptr}};
PyType_Spec fetch_spec = {"pyfab.Fetch", sizeof(OperationObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                          fetch_slots};

PyType_Slot operation_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(operation_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(operation_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(operation_clear)},
    {Py_tp_methods, operation_methods},
    {Py_tp_getset, operation_getset},
    {Py_tp_repr, reinterpret_cast<void*>(operation_repr)},
    {Py_am_await, reinterpret_cast<void*>(operation_await)},
    {Py_tp_doc,
     const_cast<char*>(
         "A started operation: blocking (result), by callback, or `await`. Safe from any thread.")},
    {0, nullptr}};
PyType_Spec operation_spec = {
    "pyfab.Operation", sizeof(OperationObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    operation_slots};

}  // namespace

[[gnu::hot]] OperationObject* new_operation(bool brings) noexcept {
  auto* operation = PyObject_GC_New(OperationObject, brings ? fetch_type : operation_type);
  if (!operation) return nullptr;
  new (&operation->core) Operation;  // with parentheses all of it would be filled with zeros first
  new (&operation->phase) std::atomic<int>(OperationObject::kPosting);
  new (&operation->wants_notice) std::atomic<bool>(false);
  operation->next = nullptr;
  new (&operation->origin) std::shared_ptr<const Origin>();
  new (&operation->entry) Tally::Entry;
  operation->buffers = nullptr;
  operation->user_context = nullptr;
  operation->callbacks = nullptr;
  operation->value = operation->value_dtype = nullptr;
  operation->tagged = false;
  return operation;
}

std::uint32_t completion_flags(OpCode op) noexcept {
  switch (op) {
    case OpCode::write:
      return completion_flag::kRma | completion_flag::kWrite;
    case OpCode::read:
      return completion_flag::kRma | completion_flag::kRead;
    case OpCode::atomic:
      return completion_flag::kAtomic | completion_flag::kWrite;
    case OpCode::send:
      return completion_flag::kMessage | completion_flag::kSend;
    case OpCode::receive:
      return completion_flag::kMessage | completion_flag::kRecv;
    default:
      return completion_flag::kAtomic | completion_flag::kRead;
  }
}

[[gnu::hot]] void begin(OperationObject& operation, std::uint32_t transfers, std::uint64_t context_number,
                        CompletionQueue* queue) {
  if (queue && !queue->reserve())
    throw Error(Errc::again, "the completion queue of " + std::to_string(queue->size()) +
                                 " entries is full; read it before posting more, or make it larger");
  const std::uint32_t flags =
      completion_flags(operation.op) | (operation.tagged ? completion_flag::kTagged : 0);
  operation.core.begin({.transfers = transfers,
                        .context = context_number,
                        .flags = flags,
                        .queue = queue,
                        .hook = settled_hook});
}

void keep_context(OperationObject& operation, PyObject* context) noexcept {
  operation.user_context = Py_NewRef(context);
  track(operation);
  // The object may refer to the endpoint. So it is released as soon as the operation has ended, rather than
  // at the next call of the endpoint.
  if (PyObject_IS_GC(context)) operation.wants_notice.store(true);
}

[[gnu::hot]] void launched(OperationObject& operation, std::vector<LocalBuffer> buffers) {
  if (operation.phase.load() == OperationObject::kSettled) return;
  operation.buffers = new std::vector<LocalBuffer>(std::move(buffers));
  Py_INCREF(reinterpret_cast<PyObject*>(&operation));
  Tally* const tally = operation.origin->tally.get();
  if (tally) tally->enter(operation.entry);
  int expected = OperationObject::kPosting;
  if (operation.phase.compare_exchange_strong(expected, OperationObject::kInFlight)) return;
  if (tally) tally->leave(operation.entry);
  delete std::exchange(operation.buffers, nullptr);
  Py_DECREF(reinterpret_cast<PyObject*>(&operation));
}

void bind_operation(py::module_& m) {
  bind_completion(m);
  operation_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&operation_spec));
  if (!operation_type) throw py::error_already_set();
  PyObject* fetch = PyType_FromSpecWithBases(&fetch_spec, reinterpret_cast<PyObject*>(operation_type));
  if (!fetch) throw py::error_already_set();
  fetch_type = reinterpret_cast<PyTypeObject*>(fetch);
  m.attr("Fetch") = py::reinterpret_borrow<py::object>(fetch);
  m.attr("Operation") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(operation_type));
  m.def(
      "set_operation_helpers",
      [](const py::object& flags, const py::object& await) {
        set_flag_class(flags);
        await_function = py::object(await).release().ptr();
      },
      py::arg("flags"), py::arg("await_function"));
}

}  // namespace fab::python
