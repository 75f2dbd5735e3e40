#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/queues/intrusive_list.h"
#include "fabric/types/types.h"
#include "providers/lnx/rails/posting.h"

namespace fab::lnx {

class RequestQueue;

struct Range {
  std::uint64_t offset, length;
};

// A transfer of the user, with all the memory that it needs on its way. One that was announced becomes, when
// it is over, the note by which the peer may forget it.
struct Request {
  Transfer transfer{};
  std::uint64_t place = 0;   // in the order of posting, from 1 on
  std::uint64_t number = 0;  // in the flow, from the first time on that it, or its end, is sent
  ListLink<Request> age, queue;
  RequestQueue* in = nullptr;  // where it waits
  Errc error = Errc::ok;
  unsigned postings = 0;              // with the links
  bool ordered = false;               // goes over the primary rail, behind the puts that took others
  bool striped = false;               // goes in stripes
  bool unordered_open = false;        // a put that is on its way beside the primary rail
  bool end_sent = false;              // striped
  bool announced = false;             // a message of which the receiver was told
  bool sent_small = false;            // once: the peer may know it as a message that is not announced
  bool over = false;                  // its outcome was told
  std::uint64_t next = 0;             // striped: bytes that were given to a rail once
  std::uint64_t stored = 0;           // striped: bytes that arrived
  std::vector<Range> holes;           // striped: lost with a rail; at most kMostHoles
  std::unique_ptr<std::byte[]> copy;  // of what was injected,
  std::uint64_t context = 0;          // which ended for the user when it was posted, and for a late error
  std::uint32_t flags = 0;            // the context and flags of its entry
  Posting posting;                    // the whole, or the end of a striped one, or the note

  bool announced_now() const noexcept {
    const bool whole = posting.under_way && posting.kind == Posting::Kind::whole;
    return !sent_small && (announced || (whole && posting.announced));
  }
};

inline bool moves_data(OpCode op) noexcept { return op == OpCode::write || op == OpCode::read; }
inline bool fetches(OpCode op) noexcept { return op == OpCode::fetch_atomic || op == OpCode::compare_atomic; }
// Bytes of the user that go to the peer, and that come from there.
inline std::uint64_t bytes_out(const Transfer& transfer) noexcept {
  return transfer.op == OpCode::read ? 0 : transfer.length;
}
inline std::uint64_t bytes_back(const Transfer& transfer) noexcept {
  return transfer.op == OpCode::read || fetches(transfer.op) ? transfer.length : 0;
}

// Requests that wait, each in at most one queue.
class RequestQueue {
 public:
  bool empty() const noexcept { return list_.empty(); }
  Request* front() const noexcept { return list_.front(); }
  // Takes it out of the queue in which it is.
  static void leave(Request& request) noexcept {
    if (!request.in) return;
    RequestQueue& queue = *std::exchange(request.in, nullptr);
    if (queue.put_back_ == &request) queue.put_back_ = nullptr;
    queue.list_.erase(request);
  }
  void push_back(Request& request) noexcept {
    leave(request);
    request.in = this;
    list_.push_back(request);
  }
  // In its place by the order of posting, where all that wait are in that order. Those of a lost rail mostly
  // come in order, so the search goes on behind the last one.
  void put_back(Request& request) noexcept {
    leave(request);
    Request* before = put_back_ && put_back_->place < request.place ? put_back_ : nullptr;
    for (Request* next = before ? before->queue.next : list_.front(); next && next->place < request.place;
         next = next->queue.next)
      before = next;
    request.in = this;
    list_.insert_after(before, request);
    put_back_ = &request;
  }

 private:
  IntrusiveList<Request, &Request::queue> list_;
  Request* put_back_ = nullptr;  // the last one, if it is still here
};

}  // namespace fab::lnx
