#include "base/locks/mutex.h"
#include "python/context/context_object.h"

namespace fab::python {
namespace {

// The transfers of one put or get: a single one, or one for each run of a strided remote array.
struct Plan {
  Transfer single;
  std::vector<Transfer> many;
  std::span<const Transfer> all() const { return many.empty() ? std::span(&single, 1) : std::span(many); }
};

// How a put or get is posted. `data` may be null.
struct Manner {
  OpCode op;
  Delivery delivery;
  PyObject* data;
};

[[gnu::hot]] void plan(Plan& out, Operation& operation, const LocalBuffer& local, const Target& target,
                       const Manner& manner) {
  const auto [op, delivery, data] = manner;
  out.many.clear();
  Transfer& transfer = out.single;
  transfer = {};
  transfer.operation = &operation;
  transfer.op = op;
  transfer.delivery = delivery;
  transfer.remote = target.remote;
  transfer.key = target.key;
  transfer.length = local.nbytes;
  transfer.local = local.data;
  if (!local.pieces.empty()) {
    transfer.local_pieces = local.pieces.data();
    transfer.piece_count = static_cast<std::uint16_t>(local.pieces.size());
  }
  if (data && data != Py_None) {
    transfer.data = PyLong_AsUnsignedLongLong(data);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      throw Error(Errc::invalid, "remote data is an int from 0 to 2**64 - 1");
    }
    transfer.flags = transfer_flag::kRemoteData;
  }
  if (!target.view || target.view->contiguous) return;
  if (transfer.piece_count)
    throw Error(Errc::invalid,
                "a list of buffers cannot go to a strided remote array; use write_many()/read_many()");
  std::uint64_t run = 0;
  std::byte* at = local.data;
  for (const std::uint64_t offset : target.view->runs(run)) {
    Transfer part = transfer;
    part.flags = 0;
    part.local = at;
    part.length = run;
    part.remote = target.view->region->base + offset;
    at += run;
    out.many.push_back(part);
  }
  out.many.back().flags = transfer.flags;  // remote data goes with the last byte
}

// A method, and whether what it starts tells the completion queue.
struct Verb {
  const char* name;
  OpCode op;
  bool queued = true;
};

// The optional arguments of write() and read(): data, context and flags, each null if it is not given. They
// are read where they were stored: a copy in wider pieces would have to wait until the stores are over.
struct Extras {
  PyObject* const* given;
  PyObject* data() const { return given[0]; }
  PyObject* context() const { return given[1]; }
  PyObject* flags() const { return given[2]; }
};
constexpr PyObject* kNoExtras[3] = {};

// What a blocking call needs. It outlives the call if the waiting is interrupted.
struct Call {
  Operation operation;
  LocalBuffer local;
  Plan posts;
};

// The last Call that this thread has finished, for its next one.
thread_local std::shared_ptr<Call> spare_call;

ContextHandle& ready(ContextHandle& handle) {
  handle.check_open();
  if (!handle.finished->empty()) handle.finished->drain();
  return handle;
}

[[gnu::hot]] OperationObject* start(const Verb& verb, ContextHandle& handle, PyObject* from,
                                    const Target& target, const Extras& extras) {
  const bool reading = verb.op == OpCode::read;
  if (reading && extras.data() && extras.data() != Py_None)
    throw Error(Errc::invalid, "a read carries no remote data");
  LocalBuffer local = LocalBuffer::of(from, reading);
  check_fit(local, target, verb.name);
  const Delivery delivery = delivery_from(extras.flags());

  OperationObject* operation = prepare_operation(handle, {verb.op}, target, local.nbytes, extras.context());
  try {
    Plan posts;
    plan(posts, operation->core, local, target, {verb.op, delivery, extras.data()});
    begin(*operation, static_cast<std::uint32_t>(posts.all().size()),
          context_number(handle, extras.context()), verb.queued ? handle.queue.get() : nullptr);
    post_operation(handle, posts.all(), *operation, {&local, 1});
    return operation;
  } catch (...) {
    Py_DECREF(reinterpret_cast<PyObject*>(operation));
    throw;
  }
}

}  // namespace

OperationObject* start_move(const char* name, OpCode op, ContextHandle& handle, PyObject* local,
                            const Target& target) {
  return start({name, op}, ready(handle), local, target, {kNoExtras});
}

void move_now(const char* name, OpCode op, ContextHandle& handle, LocalBuffer local, const Target& target) {
  check_fit(local, target, name);
  introduce(handle, target);
  auto call = std::exchange(spare_call, nullptr);
  if (!call) call = std::make_shared<Call>();
  call->local = std::move(local);
  Operation& operation = call->operation;
  const std::uint64_t nbytes = call->local.nbytes;
  plan(call->posts, operation, call->local, target, {op, Delivery::delivery, nullptr});
  const auto posts = call->posts.all();
  operation.begin({.transfers = static_cast<std::uint32_t>(posts.size()), .flags = completion_flags(op)});
  try {
    post_all(handle, target.peer, {posts, nbytes >= kLongWork}, operation);
    if (!operation.done())
      wait_interruptibly(
          [&](Deadline until) { return handle.context->wait([&] { return operation.done(); }, until); }, {});
  } catch (...) {
    if (!operation.done()) {
      const LockGuard lock(handle.shared->mutex);
      handle.shared->interrupted.push_back(call);
    }
    throw;
  }
  if (const Errc error = operation.completion().error; error != Errc::ok) {
    raise_failure({op, error, nbytes, target.remote, target.key, target.peer}, handle.context.get());
    throw py::error_already_set();
  }
  call->local = LocalBuffer();
  spare_call = std::move(call);
}

void move_now(const char* name, OpCode op, ContextHandle& handle, PyObject* local, const Target& target) {
  move_now(name, op, ready(handle), LocalBuffer::of(local, op == OpCode::read), target);
}

namespace {

[[gnu::hot]] PyObject* start(const Verb& verb, PyObject* self, const Passed& passed) {
  static const char* const names[] = {"local", "peer", "remote", "data", "context", "flags"};
  PyObject* given[6];
  if (!parse_arguments(verb.name, names, 3, passed, given)) return nullptr;
  try {
    ContextHandle& handle = ready(context_handle(self));
    const Target target = Target::of(peer_from(given[1]), given[2]);
    return reinterpret_cast<PyObject*>(start(verb, handle, given[0], target, {given + 3}));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// A put or get that is complete on return, without an Operation and without a queue entry.
[[gnu::hot]] PyObject* blocking(const char* name, OpCode op, PyObject* self, const Passed& passed) {
  static const char* const names[] = {"local", "peer", "remote", "timeout"};
  PyObject* given[4];
  if (!parse_arguments(name, names, 3, passed, given)) return nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    const Target target = Target::of(peer_from(given[1]), given[2]);
    if (given[3] && given[3] != Py_None) {
      // With a time limit the operation may outlive the call, so it needs an object that keeps it.
      auto* operation =
          reinterpret_cast<PyObject*>(start({name, op, false}, ready(handle), given[0], target, {kNoExtras}));
      PyObject* result = PyObject_CallMethod(operation, "result", "O", given[3]);
      Py_DECREF(operation);
      Py_XDECREF(result);
      if (!result) return nullptr;
    } else {
      move_now(name, op, handle, given[0], target);
    }
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* inject(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"local", "peer", "remote", "data", "tag"};
  PyObject* given[5];
  if (!parse_arguments("inject", names, 2, {args, nargs, kwnames}, given)) return nullptr;
  if (!given[2] || given[2] == Py_None) return inject_message(self, given[0], given[1], given[4], given[3]);
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    const LocalBuffer local = LocalBuffer::of(given[0], false);
    const Target target = Target::of(peer_from(given[1]), given[2]);
    check_fit(local, target, "inject");
    introduce(handle, target);
    if (const auto limit = handle.domain->domain().info().inject_size; local.nbytes > limit)
      throw Error(Errc::message_size, "inject of " + std::to_string(local.nbytes) +
                                          " bytes; inject_size is " + std::to_string(limit) +
                                          ", use write()");
    Operation operation;
    Plan posts;
    plan(posts, operation, local, target, {OpCode::write, Delivery::inject, given[3]});
    operation.begin({.transfers = static_cast<std::uint32_t>(posts.all().size()),
                     .context = kNoContext,
                     .flags = completion_flags(OpCode::write)});
    post_all(handle, target.peer, {posts.all(), false}, operation);
    if (!operation.done()) {
      const WithoutGil without_gil;
      handle.context->wait([&] { return operation.done(); }, {});
    }
    if (const Errc error = operation.completion().error; error != Errc::ok) {
      raise_failure({OpCode::write, error, local.nbytes, target.remote, target.key, target.peer},
                    handle.context.get());
      return nullptr;
    }
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

[[gnu::hot]] PyObject* write_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                    PyObject* kwnames) {
  return start({"write", OpCode::write}, self, {args, nargs, kwnames});
}
[[gnu::hot]] PyObject* read_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                   PyObject* kwnames) {
  return start({"read", OpCode::read}, self, {args, nargs, kwnames});
}
PyObject* put_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return blocking("put", OpCode::write, self, {args, nargs, kwnames});
}
PyObject* get_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return blocking("get", OpCode::read, self, {args, nargs, kwnames});
}

}  // namespace

PyMethodDef rma_methods[] = {
    {"write", method(write_method), METH_FASTCALL | METH_KEYWORDS,
     "write($self, /, local, peer, remote, data=None, context=None, flags=None)\n--\n\n"
     "Starts a put of `local` into `remote` of `peer`; returns an Operation.\n\n"
     "local: an array or other C-contiguous buffer, a list of buffers, or (region, offset, length); it is "
     "kept alive and must not\n"
     "change until the operation is done. remote: a RemoteRegion, or (address, key). data: 64-bit remote "
     "data for the target's\n"
     "completion queue. flags: a Delivery level. Raises InvalidArgumentError, BoundsError, UnreachableError "
     "before anything moves;\n"
     "what the target refuses is the operation's outcome. Waits while the path is full."},
    {"read", method(read_method), METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, local, peer, remote, data=None, context=None, flags=None)\n--\n\n"
     "Starts a get of `remote` of `peer` into `local`; returns an Operation. Arguments as for write(); local "
     "must be writable."},
    {"put", method(put_method), METH_FASTCALL | METH_KEYWORDS,
     "put($self, /, local, peer, remote, timeout=None)\n--\n\nA write that is complete, visible at the "
     "target, on return. The fastest form."},
    {"get", method(get_method), METH_FASTCALL | METH_KEYWORDS,
     "get($self, /, local, peer, remote, timeout=None)\n--\n\nA read that is complete on return. The fastest "
     "form."},
    {"inject", method(inject), METH_FASTCALL | METH_KEYWORDS,
     "inject($self, /, local, peer, remote=None, data=None, tag=None)\n--\n\n"
     "A write of at most info.inject_size bytes, or, without `remote`, a message, with `tag` a tagged one. "
     "The buffer may "
     "be reused on\nreturn; no completion on success."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace fab::python
