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

// A transfer of the user, with all the memory that it needs. When an announced message is over, its request
// becomes the note that lets the peer forget it.
struct Request {
  Transfer transfer{};
  std::uint64_t place = 0;   // in the order of posting, from 1 on
  std::uint64_t number = 0;  // in the flow; given when the request, or its end, is sent for the first time
  ListLink<Request> age, queue;
  RequestQueue* in = nullptr;  // the queue in which it waits
  Errc error = Errc::ok;
  unsigned postings = 0;        // how many of its postings the links hold
  bool ordered = false;         // goes over the primary rail, behind the puts that took other rails
  bool striped = false;         // goes in stripes
  bool unordered_open = false;  // a put that is under way on another rail than the primary
  bool end_sent = false;        // striped: the end was posted
  bool announced = false;       // a message that was announced to the receiver
  bool sent_small = false;      // a message that was sent without announcement: the peer may know it as such
  bool over = false;            // its outcome was told
  std::uint64_t next = 0;       // striped: bytes up to here were given to a rail at least once
  std::uint64_t stored = 0;     // striped: bytes that arrived
  std::vector<Range> holes;     // striped: ranges that were lost with a rail; at most kMostHoles
  // An injected transfer is over for the user when it is posted. `copy` has its bytes; `context` and `flags`
  // are for the entry of an error that comes later.
  std::unique_ptr<std::byte[]> copy;
  std::uint64_t context = 0;
  std::uint32_t flags = 0;
  Posting posting;  // for the whole, for the end of a striped request, or for the note

  bool announced_now() const noexcept {
    const bool whole = posting.under_way && posting.kind == Posting::Kind::whole;
    return !sent_small && (announced || (whole && posting.announced));
  }
};

inline bool moves_data(OpCode op) noexcept { return op == OpCode::write || op == OpCode::read; }
inline bool fetches(OpCode op) noexcept { return op == OpCode::fetch_atomic || op == OpCode::compare_atomic; }
// The user's bytes that go to the peer, and that come from the peer.
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
  // Takes the request out of the queue in which it waits, if any.
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
  // Puts the request in its place by the order of posting; all that wait are in that order. Requests of a
  // lost rail mostly come back in order, so the search begins behind the last one.
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
  Request* put_back_ = nullptr;  // the last one that was put back, if it is still here
};

}  // namespace fab::lnx
