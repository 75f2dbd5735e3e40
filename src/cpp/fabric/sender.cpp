#include "fabric/sender.h"

namespace fab {

void Sender::known_as(PeerId peer) noexcept {
  handle_ = peer;
  generation_ = peers_.generation(peer);
  seen_ = ~std::uint64_t{0};
}

void Sender::look_again() noexcept {
  seen_ = peers_.changes();
  if (handle_ == kNoPeer || peers_.generation(handle_) != generation_) {
    handle_ = kNoPeer;
    for (const Part& name : names_)
      if (handle_ == kNoPeer && peers_.size() != 0) handle_ = peers_.find(name);
    generation_ = handle_ == kNoPeer ? 0 : peers_.generation(handle_);
  }
  reported_ = handle_ == kNoPeer ? kNoPeer : peers_.reported(handle_);
}

}  // namespace fab
