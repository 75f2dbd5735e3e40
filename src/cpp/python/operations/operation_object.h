#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "fabric/completion/operation.h"
#include "python/memory/buffers.h"
#include "python/operations/tally.h"

namespace fab::python {

// A function with any of the signatures that a method may have, as a PyMethodDef takes it.
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
  std::shared_ptr<Tally> tally;  // null: nobody counts them
  bool manual = false;
};

// Operations that were settled by somebody without the GIL and wait for their owner's side to let go of them.
class FinishedList {
 public:
  void push(OperationObject& operation) noexcept;
  bool empty() const noexcept {
    return head_.load(std::memory_order_relaxed) == nullptr && !late_.load(std::memory_order_relaxed);
  }
  // Releases buffers and runs callbacks. With the GIL. One thread does it at a time, for the others as well,
  // so callbacks never nest: if one starts an operation that ends at once, the loop here comes to that one's
  // callbacks later.
  void drain() noexcept;
  // Calls callbacks that were added when their operation had already ended. With the GIL.
  void call_late(OperationObject& operation);
  // Whether the calling thread is inside a callback.
  bool inside() const noexcept { return drainer_.load() == std::this_thread::get_id(); }

 private:
  void drain_once() noexcept;

  std::atomic<OperationObject*> head_{nullptr};
  std::atomic<bool> late_{false};  // late_operations_ holds some
  std::mutex late_mutex_;
  std::vector<OperationObject*> late_operations_;  // owned
  std::atomic<bool> draining_{false};
  std::atomic<std::thread::id> drainer_{};
};

// What Python calls Operation. Written against CPython's API because one is made per operation: pybind11's
// instances cost more than the rest of a small put.
struct OperationObject {
  PyObject_HEAD enum Phase : int { kPosting, kInFlight, kSettled };
  Operation core;
  std::atomic<int> phase;
  std::atomic<bool> wants_notice;  // callbacks wait: run them soon
  OperationObject* next;           // in a FinishedList
  std::shared_ptr<const Origin> origin;
  std::vector<LocalBuffer>* buffers;  // owned while in flight
  PyObject* user_context;             // owned, or null
  PyObject* callbacks;                // owned list, or null
  PeerId peer;
  OpCode op;
  std::uint64_t remote, key, nbytes;
  Tally::Entry entry;  // in the origin's tally, while in flight
  std::uint64_t
      words[3];  // operand, comparand and result of an atomic on one element, where they need a place
  PyObject *value, *value_dtype;  // owned, or null
  bool tagged;                    // a tagged message
};

inline constexpr std::uint64_t kNoContext = std::uint64_t{1} << 63;  // and above: numbers of kept objects

// Makes an operation in phase kPosting; returns null with the Python error set if there is no memory. The
// result of one that `brings` is what it brought: `value`, or an element of `value_dtype` in `words[2]`.
OperationObject* new_operation(bool brings = false) noexcept;
// Takes a place in the queue (null: none) and prepares the hook. Throws Error(again) if the queue is full.
void begin(OperationObject& operation, std::uint32_t transfers, std::uint64_t context_number,
           CompletionQueue* queue);
// Keeps the caller's context argument for the Completion.
void keep_context(OperationObject& operation, PyObject* context) noexcept;
// Comes after the last post. An operation that is still in flight then keeps itself and `buffers` alive until
// it is settled.
void launched(OperationObject& operation, std::vector<LocalBuffer> buffers);

std::uint32_t completion_flags(OpCode op) noexcept;

}  // namespace fab::python
