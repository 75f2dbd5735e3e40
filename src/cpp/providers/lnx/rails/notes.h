#pragma once

#include "providers/lnx/rails/journal.h"
#include "providers/lnx/rails/rail.h"

namespace fab::lnx {

// Tells the peer what it need not remember any longer.
class Notes {
 public:
  Notes(const RailsParameters& parameters, RailSet& rails, Journal& journal)
      : parameters_(parameters), rails_(rails), journal_(journal) {}

  bool send() noexcept;  // true if any went
  // The peer knows it, or it was lost with its rail.
  void ended(Posting& note) noexcept;

 private:
  bool send_on(Rail& rail, std::uint64_t mark) noexcept;
  static bool send_one(Rail& rail, Posting& posting, std::uint64_t mark, Request* message) noexcept;

  const RailsParameters& parameters_;
  RailSet& rails_;
  Journal& journal_;
  Posting mark_;  // of a note that is of no message
};

}  // namespace fab::lnx
