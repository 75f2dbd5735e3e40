#pragma once

#include <cstdint>
#include <vector>

#include "fabric/name.h"
#include "fabric/types.h"

namespace fab {

class AddressVector;

// Who is at the other end of a session. It may come into the address vector, or leave it, at any time, so it
// is looked up when somebody asks. Used under its context's lock.
class Sender {
 public:
  // `names`: the parts by which the address vector may know it.
  Sender(const AddressVector& peers, std::vector<Part> names) : peers_(peers), names_(std::move(names)) {}

  void known_as(PeerId peer) noexcept;
  // Its handle, or kNoPeer while it has none.
  PeerId handle() noexcept;
  // What completions say instead (AV-73).
  PeerId reported() noexcept;

 private:
  const AddressVector& peers_;
  const std::vector<Part> names_;
  PeerId handle_ = kNoPeer;
  std::uint32_t generation_ = 0;  // of the handle, when it was found
};

}  // namespace fab
