#include "fabric/messages/sender.h"

#include <new>

namespace fab {

void Sender::known_as(PeerId peer) noexcept {
  handle_ = peer;
  generation_ = peers_.generation(peer);
  seen_ = ~std::uint64_t{0};
}

PeerId Sender::find() const {
  const auto under = [this](std::uint32_t auth) {
    PeerId found = kNoPeer;
    for (const Part& name : names_)
      if (found == kNoPeer) found = peers_.find(name, auth);
    return found;
  };
  PeerId found = kNoPeer;
  for (const std::uint32_t auth : key_.handles)
    if (found == kNoPeer) found = under(auth);
  return found == kNoPeer ? under(0) : found;
}

void Sender::look_again() noexcept {
  seen_ = peers_.changes();
  if (handle_ == kNoPeer || peers_.generation(handle_) != generation_) {
    try {
      handle_ = peers_.size() != 0 ? find() : kNoPeer;
    } catch (const std::bad_alloc&) {
      handle_ = kNoPeer;  // unknown until the next look
      seen_ = ~std::uint64_t{0};
    }
    generation_ = handle_ == kNoPeer ? 0 : peers_.generation(handle_);
  }
  if (handle_ != kNoPeer)
    reported_ = {peers_.reported(handle_)};
  else if (!key_.handles.empty())
    reported_ = {peers_.reported_of_key(key_.handles.front()), completion_flag::kAuthKey};
  else
    reported_ = {};
}

}  // namespace fab
