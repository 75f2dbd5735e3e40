#pragma once

#include <utility>

#include "base/locks/mutex.h"
#include "python/memory/remote_view.h"
#include "python/operations/operation_object.h"

namespace fab::python {

// What Python calls a context: one transmit and receive side of an endpoint.
struct ContextHandle {
  std::shared_ptr<DomainCore> domain;
  std::shared_ptr<Context> context;
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<FinishedList> finished = std::make_shared<FinishedList>();
  // Context arguments of callers that are not ints, by number. The reader of the queue shares the dict.
  py::dict objects;
  // What all handles of the context share.
  struct Shared {
    // Calls whose waiting was ended by an exception, such as Ctrl-C. Their memory stays until the context has
    // settled everything.
    std::vector<std::shared_ptr<void>> interrupted FAB_GUARDED_BY(mutex);
    Mutex mutex;
    std::atomic<bool> closed{false};
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::shared_ptr<const Origin> origin;  // of the operations that start here
  bool manual = false;
  // Only a scope has these two. A scope is a handle that counts its operations and does not own the context.
  std::shared_ptr<Tally> tally;
  bool no_wait = false;  // an operation that finds the path full is not started and throws Error(again)

  py::object kept;  // an object that lives as long as operations can be started here

  ~ContextHandle();
  // Operations in flight are not visited, because they keep themselves alive until they have ended.
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
  // All must belong to one domain.
  static void close_all(const std::vector<ContextHandle*>& handles);
  void end();
  // Another handle of the same context, with a tally of its own.
  std::unique_ptr<ContextHandle> scope(bool never_waits) const;
  // Waits until all operations that this scope has started have ended and, with `callbacks`, their callbacks
  // have been called. Raises the first failure that nobody has seen. Returns false when the time is over.
  bool flush_scope(Deadline deadline, bool callbacks);
  void check_open() const {
    if (shared->closed.load()) throw Error(Errc::closed, "the endpoint is closed");
    domain->check_open();
  }
};

ContextHandle& context_handle(PyObject* object);

// The remote memory of an operation: a peer's, from a RemoteRegion or from (address, key).
struct Target {
  PeerId peer = kNoPeer;
  std::uint64_t remote = 0, key = 0;
  const RemoteView* view = nullptr;  // null for (address, key)
  static Target of(PeerId peer, PyObject* object);
};

// Tells the path about the target's region. To be called before a put or get, because the path may need that.
void introduce(ContextHandle& handle, const Target& target);
// Compares size and dtype of a local buffer with the target's before anything moves. Throws if they differ.
void check_fit(const LocalBuffer& local, const Target& target, const char* what);

// Transfers of an operation that are posted together.
struct Batch {
  std::span<const Transfer> transfers;
  bool long_work;     // other Python threads should run meanwhile
  bool first = true;  // no other batch of the operation came before
};
// Posts all of `batch`, and waits for room while the path is full.
//
// Before this throws, all transfers that were not posted have settled. If those are the whole operation, it
// leaves no queue entry. Returns false if the path ended while it was full: then the other transfers have
// settled with peer_lost, like all that the path had taken.
bool post_all(ContextHandle& handle, PeerId peer, const Batch& batch, Operation& operation);

// Bytes from which a copy takes so long that other Python threads should run meanwhile.
inline constexpr std::uint64_t kLongWork = 32 * 1024;

struct OperationKind {
  OpCode op;
  bool brings = false;  // new_operation()
};
// Calls introduce() and makes a new operation. The caller then calls begin(), which takes a place in the
// completion queue.
OperationObject* prepare_operation(ContextHandle& handle, const OperationKind& kind, const Target& target,
                                   std::uint64_t nbytes, PyObject* user_context);
// Does post_all() for an operation that has begun. If it is in flight afterwards, it keeps its buffers.
void post_operation(ContextHandle& handle, std::span<const Transfer> batch, OperationObject& operation,
                    std::span<LocalBuffer> buffers);

// A put or get of all of `local`. start_move() returns a new reference to its operation; move_now() returns
// when it is complete. Both throw if an argument is wrong, move_now() also if the operation fails.
OperationObject* start_move(const char* name, OpCode op, ContextHandle& handle, PyObject* local,
                            const Target& target);
void move_now(const char* name, OpCode op, ContextHandle& handle, PyObject* local, const Target& target);
void move_now(const char* name, OpCode op, ContextHandle& handle, LocalBuffer local, const Target& target);

Delivery delivery_from(PyObject* flags);
// The number that a completion carries for the caller's context argument. An int below kNoContext is the
// number itself; any other object is kept under a new number.
std::uint64_t context_number(ContextHandle& handle, PyObject* context);

// What Python hands to a METH_FASTCALL method: values by position, then those of the names.
struct Passed {
  PyObject* const* args;
  Py_ssize_t nargs;
  PyObject* kwnames;
};

// Finds the arguments of a METH_FASTCALL method by position or name, in the order of `names`. Arguments that
// are not given become null. Returns false with the Python error set if they do not fit.
template <std::size_t N>
bool parse_arguments(const char* function, const char* const (&names)[N], std::size_t required,
                     const Passed& passed, PyObject* (&out)[N]) noexcept {
  const auto [args, nargs, kwnames] = passed;
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
// send, tsend, recv, trecv, peek, claim, discard, cancel, message_stats
extern PyMethodDef message_methods[];
extern PyMethodDef atomic_methods[];  // atomic, fetch_atomic, compare_atomic

// inject() of a message; `tag` and `data` may be null or None.
PyObject* inject_message(PyObject* self, PyObject* buffer, PyObject* to, PyObject* tag, PyObject* data);

// The DataType of a dtype whose elements can be updated atomically; nothing for other dtypes.
std::optional<DataType> atomic_type(PyObject* dtype);

// Throws Error(invalid) for an object that is no handle.
PeerId peer_from(PyObject* object);

}  // namespace fab::python
