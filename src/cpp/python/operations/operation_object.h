#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/completion/operation.h"
#include "python/memory/buffers.h"
#include "python/operations/tally.h"

namespace fab::python {

// Casts a function with any signature that a method may have to the type that PyMethodDef takes.
template <class F>
PyCFunction method(F function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

struct OperationObject;
class FinishedList;

// What all operations that start through one handle of a context share.
struct Origin {
  std::shared_ptr<Context> context;
  std::shared_ptr<FinishedList> finished;
  std::shared_ptr<Tally> tally;  // null if nobody counts the operations
  bool manual = false;
};

// Operations that have settled, in code without the GIL, and wait for a thread with the GIL to release them.
class FinishedList {
 public:
  void push(OperationObject& operation) noexcept;
  bool empty() const noexcept {
    return head_.load(std::memory_order_relaxed) == nullptr && !late_.load(std::memory_order_relaxed);
  }
  // Releases buffers and runs callbacks. Needs the GIL. One thread at a time does this for all threads, so
  // callbacks never nest: if one starts an operation that ends at once, the callbacks of that operation come
  // later.
  void drain() noexcept;
  // Calls callbacks that were added after their operation had ended. Needs the GIL.
  void call_late(OperationObject& operation);
  // Whether the calling thread is inside a callback.
  bool inside() const noexcept { return drainer_.load() == std::this_thread::get_id(); }

 private:
  void drain_once() noexcept;

  std::atomic<OperationObject*> head_{nullptr};
  std::atomic<bool> late_{false};  // late_operations_ is not empty
  Mutex late_mutex_;
  std::vector<OperationObject*> late_operations_ FAB_GUARDED_BY(late_mutex_);  // owned
  std::atomic<bool> draining_{false};
  std::atomic<std::thread::id> drainer_{};
};

// Python's Operation. It is written against the API of CPython, because an instance of pybind11 would cost
// more than the rest of a small put.
struct OperationObject {
  PyObject_HEAD enum Phase : int { kPosting, kInFlight, kSettled };
  Operation core;
  std::atomic<int> phase;
  std::atomic<bool> wants_notice;  // has callbacks or a context object that must not wait for the next call
  OperationObject* next;           // in a FinishedList
  std::shared_ptr<const Origin> origin;
  std::vector<LocalBuffer>* buffers;  // owned while in flight
  PyObject* user_context;             // owned, or null
  PyObject* callbacks;                // owned list, or null
  PeerId peer;
  OpCode op;
  std::uint64_t remote, key, nbytes;
  Tally::Entry entry;  // in the origin's tally, while in flight
  // The operand, comparand and result of an atomic on one element, if they are not in the caller's memory.
  std::uint64_t words[3];
  PyObject *value, *value_dtype;  // owned, or null
  bool tagged;                    // a tagged message
};

// The context number of an operation without a context argument. Higher ones are the numbers of kept objects.
inline constexpr std::uint64_t kNoContext = std::uint64_t{1} << 63;

// Makes an operation in phase kPosting. Returns null with the Python error set if there is no memory. With
// `brings` it is a Fetch, whose result is `value` or an element of `value_dtype` in `words[2]`.
OperationObject* new_operation(bool brings = false) noexcept;
// Takes a place in the queue, unless `queue` is null, and prepares the hook. Throws Error(again) if the queue
// is full.
void begin(OperationObject& operation, std::uint32_t transfers, std::uint64_t context_number,
           CompletionQueue* queue);
// Keeps the caller's context argument, for the Completion.
void keep_context(OperationObject& operation, PyObject* context) noexcept;
// To be called after the last post. An operation that is still in flight keeps itself and `buffers` alive
// until it has settled.
void launched(OperationObject& operation, std::vector<LocalBuffer> buffers);

std::uint32_t completion_flags(OpCode op) noexcept;

}  // namespace fab::python
