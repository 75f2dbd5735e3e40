#pragma once

#include <atomic>
#include <vector>

#include "fabric/operation.h"
#include "python/buffers.h"

namespace fab::python {

struct OperationObject;

// Operations that were settled by somebody without the GIL and wait for their owner's side to let go of them.
class FinishedList {
 public:
  void push(OperationObject& operation) noexcept;
  bool empty() const noexcept { return head_.load(std::memory_order_relaxed) == nullptr; }
  // Releases buffers, runs callbacks. With the GIL.
  void drain() noexcept;

 private:
  std::atomic<OperationObject*> head_{nullptr};
};

// What Python calls Operation. Written against CPython's API because one is made per operation: pybind11's
// instances cost more than the rest of a small put.
struct OperationObject {
  PyObject_HEAD enum Phase : int { kPosting, kInFlight, kSettled };
  Operation core;
  std::atomic<int> phase;
  std::atomic<bool> wants_notice;  // callbacks wait: run them soon
  OperationObject* next;           // in a FinishedList
  std::shared_ptr<Context> context;
  std::shared_ptr<FinishedList> finished;
  std::vector<LocalBuffer>* buffers;  // owned while in flight
  PyObject* user_context;             // owned, or null
  PyObject* callbacks;                // owned list, or null
  PeerId peer;
  OpCode op;
  std::uint64_t remote, key, nbytes;
  bool manual;
  bool tagged;  // a tagged message
};

inline constexpr std::uint64_t kNoContext = std::uint64_t{1} << 63;  // and above: numbers of kept objects

// A fresh operation in phase kPosting. Null: Python error set.
OperationObject* new_operation() noexcept;
// Takes a place in the queue (null: none) and prepares the hook. Throws Error(again) if the queue is full.
void begin(OperationObject& operation, std::uint32_t parts, std::uint64_t context_number,
           CompletionQueue* queue);
// Keeps the caller's context argument for the Completion.
void keep_context(OperationObject& operation, PyObject* context) noexcept;
// After the last post: the operation is done, or in flight and then keeps itself and `buffers` alive until it
// is settled.
void launched(OperationObject& operation, std::vector<LocalBuffer> buffers);

// The Completion of a queue entry; `context` (borrowed) replaces the number if given.
PyObject* make_completion(const Completion& completion, PyObject* context);
// Sets the Python error that tells how the operation failed: what was asked, of whom, what was found.
void raise_failure(OpCode op, Errc error, std::uint64_t nbytes, std::uint64_t remote, std::uint64_t key,
                   PeerId peer, Context* context);
py::object failure(OpCode op, Errc error, std::uint64_t nbytes, std::uint64_t remote, std::uint64_t key,
                   PeerId peer, Context* context);
std::uint32_t completion_flags(OpCode op) noexcept;

}  // namespace fab::python
