#pragma once

#include <cstdint>
#include <memory>

#include "base/lifetime.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/provider.h"
#include "providers/lnx/flows/flow.h"
#include "providers/lnx/rails/request.h"

namespace fab::lnx {

// What the user posted on rails: every request until its outcome is known, the numbers under which the peer
// remembers what must happen once, and what the peer may forget. It knows nothing of rails.
class Journal {
 public:
  explicit Journal(CompletionQueue& completions) : completions_(completions) {}
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // --- requests
  bool full() const noexcept { return live_ >= kMostOpen; }
  bool empty() const noexcept { return live_ == 0; }
  // Makes a request of the transfer, with all the memory that it will need. Null: `state`, the transfer or a
  // lack of memory forbids it, and its operation has settled with that error. The operation of an injected
  // transfer has settled, too.
  Request* accept(const Transfer& transfer, Errc state) noexcept;
  // Settles the operation with `request.error`. The request becomes a note, or is gone.
  void finish(Request& request) noexcept;
  PathCounts counts() const noexcept { return counts_; }
  std::uint64_t oldest() const noexcept;  // as Path
  // Visits all open requests in the order of posting; `visit` may finish the one that it is given.
  template <class Visit>
  void visit_open(Visit visit) noexcept {
    for (auto at = open_.begin(); at != open_.end();) {
      Request& request = *at;
      ++at;
      visit(request);
    }
  }

  // --- numbers
  // Gives the request the next number, unless it has one.
  void number(Request& request) noexcept;
  // Whether the request has to wait for its number, because the peer must forget some results before it can
  // keep more.
  bool waits_for_number(const Request& request) const noexcept;

  // --- what the peer need not remember any longer
  // All requests with a smaller number have settled.
  std::uint64_t mark() const noexcept;
  bool much_settled() const noexcept { return settled_untold_ >= kSettledAtOnce; }
  bool mark_is_due() const noexcept;
  void mark_is_told() noexcept { settled_untold_ = 0; }
  void mark_was_lost() noexcept;
  void mark_is_known(std::uint64_t mark) noexcept;  // the peer knows the mark
  RequestQueue& notes() noexcept FAB_LIFETIME_BOUND {
    return notes_;
  }  // for announced messages that are over
  void recycle(Request& request) noexcept;  // the peer knows this note

  static constexpr std::size_t kMostOpen = 4096;  // requests
  static constexpr std::uint64_t kSettledAtOnce = 64;
  // The greatest sum of result_cost() that the peer may have to keep.
  static constexpr std::uint64_t kMostResults = Flow::kMostResults / 2;
  // Bytes that an outcome costs the peer, if it does not continue a run of plain successes.
  static constexpr std::uint64_t kRecord = kMostResults / Flow::kMostUnsettled;

 private:
  static constexpr std::size_t kMostSpare = 256;

  void forget_notes() noexcept;
  std::unique_ptr<Request> make();
  void keep_result(std::uint64_t cost, std::uint64_t number) noexcept;

  CompletionQueue& completions_;
  PathCounts counts_;
  IntrusiveList<Request, &Request::age> open_;  // in the order of posting; owns them
  std::size_t live_ = 0;
  RequestQueue notes_;                             // owns them
  IntrusiveList<Request, &Request::queue> spare_;  // owns them
  std::size_t spares_ = 0;
  std::uint64_t next_number_ = 1;
  std::uint64_t settled_untold_ = 0;  // numbers that ended since the peer was told
  std::uint64_t results_ = 0;         // sum of result_cost() of what the peer may not have forgotten
  std::uint64_t last_result_ = 0;     // the last number that is counted in results_
};

// Bytes that the peer keeps of a request that must happen once, for a repetition.
std::uint64_t result_cost(const Transfer& transfer) noexcept;

}  // namespace fab::lnx
