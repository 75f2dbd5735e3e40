#include "fabric/sender.h"

#include "fabric/address_vector.h"

namespace fab {

void Sender::known_as(PeerId peer) noexcept {
  handle_ = peer;
  generation_ = peers_.generation(peer);
}

PeerId Sender::handle() noexcept {
  if (handle_ != kNoPeer && peers_.generation(handle_) == generation_) return handle_;
  if (handle_ == kNoPeer && peers_.size() == 0) return kNoPeer;
  PeerId found = kNoPeer;
  for (const Part& name : names_)
    if (found == kNoPeer) found = peers_.find(name);
  known_as(found);
  return handle_;
}

PeerId Sender::reported() noexcept {
  const PeerId known = handle();
  return known == kNoPeer ? kNoPeer : peers_.reported(known);
}

}  // namespace fab
