#pragma once

#include <utility>

#include "python/memory/remote_view.h"
#include "python/operations/operation_object.h"

namespace fab::python {

// What Python calls a context: one transmit and receive side of an endpoint.
struct ContextHandle {
  std::shared_ptr<DomainCore> domain;
  std::shared_ptr<Context> context;
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<FinishedList> finished = std::make_shared<FinishedList>();
  py::dict objects;  // number → what the caller gave as context, where that is no int; shared with the
                     // queue's reader
  // What all handles of the context share.
  struct Shared {
    // Calls whose waiting an exception ended (Ctrl-C): their memory stays until the context has settled
    // everything.
    std::vector<std::shared_ptr<void>> interrupted;
    std::mutex mutex;  // guards `interrupted`
    std::atomic<bool> closed{false};
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::shared_ptr<const Origin> origin;  // of the operations that start here
  bool manual = false;
  // A scope is a handle that counts what it starts and does not own the context. It alone has these two:
  std::shared_ptr<Tally> tally;
  bool no_wait = false;  // what finds the path full is not started and throws Error(again)

  py::object kept;  // alive as long as operations can be started here

  ~ContextHandle();
  // The operations that are in flight are not visited: they keep themselves until they have ended.
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(objects.ptr());
    Py_VISIT(kept.ptr());
    return 0;
  }
  void clear() {
    const py::dict last_objects = std::exchange(objects, py::dict());
    const py::object last_kept = std::exchange(kept, py::object());
  }
  void close();
  static void close_all(const std::vector<ContextHandle*>& handles);  // of one domain
  void end();
  // Another handle of the same context, with a tally of its own.
  std::unique_ptr<ContextHandle> scope(bool never_waits) const;
  // Waits until all that this scope has started has ended, and, if asked, its callbacks have been called;
  // raises what failed and was not seen. False: out of time.
  bool flush_scope(Deadline deadline, bool callbacks);
  void check_open() const {
    if (shared->closed.load()) throw Error(Errc::closed, "the endpoint is closed");
    domain->check_open();
  }
};

ContextHandle& context_handle(PyObject* object);

// Where an operation goes: a RemoteRegion, or (address, key).
struct Target {
  std::uint64_t remote = 0, key = 0;
  const RemoteView* view = nullptr;  // null for (address, key)
  static Target of(PyObject* object);
};

// Comes before a put or get, because whoever carries it may have to know the region.
void introduce(ContextHandle& handle, PeerId peer, const Target& target);
// Compares size and dtype of a local buffer with the target's before anything moves; throws what differs.
void check_fit(const LocalBuffer& local, const Target& target, const char* what);

// Posts all of `batch` and waits for room where the path is full. What this throws comes after all that was
// not posted has settled. If that is the whole operation (`first`: no batch of it came before), the operation
// leaves no queue entry. Returns false if the path ended while it was full: then the rest has settled with
// peer_lost, as everything has that the path had taken.
bool post_all(ContextHandle& handle, PeerId peer, std::span<const Transfer> batch, Operation& operation,
              bool long_work, bool first = true);

inline constexpr std::uint64_t kLongWork =
    32 * 1024;  // bytes from which a copy is worth letting other Python threads run

// A new operation with a place in the completion queue; begin() comes next. Throws Error(again) if the queue
// is full.
OperationObject* prepare_operation(ContextHandle& handle, OpCode op, PeerId peer, const Target& target,
                                   std::uint64_t nbytes, PyObject* user_context, bool brings = false);
// post_all() for an operation that has begun; what is in flight afterwards keeps its buffers.
void post_operation(ContextHandle& handle, std::span<const Transfer> batch, OperationObject& operation,
                    std::span<LocalBuffer> buffers);

// A put or get of all of `local`: start_move() returns a new reference to its operation, move_now() returns
// when it is complete. Both throw what is wrong with the arguments, move_now() also what went wrong later.
OperationObject* start_move(const char* name, OpCode op, ContextHandle& handle, PyObject* local, PeerId peer,
                            const Target& target);
void move_now(const char* name, OpCode op, ContextHandle& handle, PyObject* local, PeerId peer,
              const Target& target);
void move_now(const char* name, OpCode op, ContextHandle& handle, LocalBuffer local, PeerId peer,
              const Target& target);

Delivery delivery_from(PyObject* flags);
// The number that a completion carries for the caller's context argument; keeps what is no int below
// kNoContext.
std::uint64_t context_number(ContextHandle& handle, PyObject* context);

// Arguments of a METH_FASTCALL method by name, in the order of `names`; those not given are null.
template <std::size_t N>
bool parse_arguments(const char* function, const char* const (&names)[N], std::size_t required,
                     PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                     PyObject* (&out)[N]) noexcept {
  if (std::cmp_greater(nargs, N)) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments (%zd given)", function, N, nargs);
    return false;
  }
  for (std::size_t i = 0; i < N; ++i) out[i] = std::cmp_less(i, nargs) ? args[i] : nullptr;
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* key = PyTuple_GET_ITEM(kwnames, k);
    std::size_t i = 0;
    while (i < N && PyUnicode_CompareWithASCIIString(key, names[i]) != 0) ++i;
    if (i == N) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", function, key);
      return false;
    }
    if (out[i]) {
      PyErr_Format(PyExc_TypeError, "%s() got several values for argument '%s'", function, names[i]);
      return false;
    }
    out[i] = args[nargs + k];
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!out[i]) {
      PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", function, names[i]);
      return false;
    }
  return true;
}

// Methods that are called once per operation, in tables that the type takes over.
extern PyMethodDef rma_methods[];     // write, read, put, get, inject
extern PyMethodDef vector_methods[];  // write_many, read_many
extern PyMethodDef
    message_methods[];                // send, tsend, recv, trecv, peek, claim, discard, cancel, message_stats
extern PyMethodDef atomic_methods[];  // atomic, fetch_atomic, compare_atomic

// inject() of a message; `tag` and `data` may be null or None.
PyObject* inject_message(PyObject* self, PyObject* buffer, PyObject* to, PyObject* tag, PyObject* data);

// The type of a dtype whose elements are updated atomically by themselves; nothing for others.
std::optional<DataType> atomic_type(PyObject* dtype);

PeerId peer_from(PyObject* object);  // throws Error(invalid) for what is no handle

}  // namespace fab::python
