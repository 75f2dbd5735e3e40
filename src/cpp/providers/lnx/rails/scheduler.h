#pragma once

#include "providers/lnx/rails/health.h"
#include "providers/lnx/rails/journal.h"
#include "providers/lnx/rails/rail.h"

namespace fab::lnx {

// What goes over which rail, and when: docs/rails.md, "What goes where".
class Scheduler {
 public:
  Scheduler(const RailsParameters& parameters, RailSet& rails, Journal& journal, Health& health)
      : parameters_(parameters), rails_(rails), journal_(journal), health_(health) {}

  void enqueue(Request& request) noexcept { waiting_.push_back(request); }
  bool empty() const noexcept { return waiting_.empty() && striping_.empty(); }
  bool any_whole() const noexcept { return !waiting_.empty(); }
  // Sends as much as the rails and the slice take; true if anything was sent.
  bool send() noexcept;
  // A posting of a request ended.
  void ended(Rail& rail, Posting& posting, Errc error) noexcept;
  // A posting of a request was lost with its rail: it is sent again, in its place.
  void lost(Posting& posting) noexcept;
  // Ends the request with this error, as soon as the links hold nothing of it.
  void fail(Request& request, Errc error) noexcept;

 private:
  static constexpr std::size_t kBatch = 32;

  bool choose_primary() noexcept;
  Rail* rail_for(const Request& request) noexcept;
  bool send_whole() noexcept;
  bool send_batch(Rail& rail, bool& full) noexcept;
  bool send_stripes() noexcept;
  bool send_stripes_of(Request& request) noexcept;
  bool send_stripe(Request& request, Rail& rail) noexcept;
  bool send_end(Request& request) noexcept;
  Transfer transfer_of(Request& request) noexcept;
  void open_unordered(Request& request) noexcept;
  void close_unordered(Request& request) noexcept;
  void finish(Request& request) noexcept;
  void finish_if_over(Request& request) noexcept;

  const RailsParameters& parameters_;
  RailSet& rails_;
  Journal& journal_;
  Health& health_;
  RequestQueue waiting_;            // whole requests that wait for a rail; in order
  RequestQueue striping_;           // requests that go in stripes; in order
  std::size_t unordered_open_ = 0;  // puts under way on other rails than the primary
};

}  // namespace fab::lnx
