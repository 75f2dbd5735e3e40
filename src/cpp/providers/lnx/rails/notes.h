#pragma once

#include "providers/lnx/rails/journal.h"
#include "providers/lnx/rails/rail.h"

namespace fab::lnx {

// Tells the peer what it need not remember any longer.
class Notes {
 public:
  Notes(const RailsParameters& parameters, RailSet& rails, Journal& journal)
      : parameters_(parameters), rails_(rails), journal_(journal) {}

  bool send() noexcept;  // true if any was sent
  // The peer knows the note, or it was lost with its rail.
  void ended(Posting& note) noexcept;

 private:
  bool send_on(Rail& rail, std::uint64_t mark) noexcept;
  static bool send_one(Rail& rail, Posting& posting, std::uint64_t mark, Request* message) noexcept;

  const RailsParameters& parameters_;
  RailSet& rails_;
  Journal& journal_;
  Posting mark_;  // the posting of a note that is about no message
};

}  // namespace fab::lnx
