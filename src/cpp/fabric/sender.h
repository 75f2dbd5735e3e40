#pragma once

#include <cstdint>
#include <vector>

#include "fabric/address_vector.h"
#include "fabric/link_counters.h"
#include "fabric/name.h"
#include "fabric/types.h"

namespace fab {

// Who is at the other end of a session. It may come into the address vector, or leave it, at any time, so it
// is looked up when somebody asks. Used under its context's lock.
class Sender {
 public:
  // `names`: the parts by which the address vector may know it. `counters`: of its link, if they are kept.
  Sender(const AddressVector& peers, std::vector<Part> names, LinkCounters* counters = nullptr)
      : peers_(peers), names_(std::move(names)), counters_(counters) {}

  void known_as(PeerId peer) noexcept;
  // Its handle, or kNoPeer while it has none.
  PeerId handle() noexcept {
    look();
    return handle_;
  }
  // What completions say instead (AV-73).
  PeerId reported() noexcept {
    look();
    return reported_;
  }
  LinkCounters* counters() const noexcept { return counters_; }

 private:
  void look() noexcept {
    if (peers_.changes() != seen_) look_again();
  }
  void look_again() noexcept;

  const AddressVector& peers_;
  const std::vector<Part> names_;
  LinkCounters* const counters_;
  PeerId handle_ = kNoPeer, reported_ = kNoPeer;
  std::uint32_t generation_ = 0;            // of the handle, when it was found
  std::uint64_t seen_ = ~std::uint64_t{0};  // AddressVector::changes(), when all that was read
};

}  // namespace fab
