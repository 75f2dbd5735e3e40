#include "fabric/messages/sender.h"

#include <new>

namespace fab {

void Sender::known_as(PeerId peer) noexcept {
  handle_ = peer;
  generation_ = peers_.generation(peer);
  seen_ = ~std::uint64_t{0};
}

// Fills in handles_. The first name under which there are any decides, and of its handles the lowest is
// returned.
PeerId Sender::find() {
  handles_.clear();
  PeerId first = kNoPeer;
  if (peers_.size() == 0) return first;
  const auto look_under = [&](std::uint32_t auth) {
    for (const Part& name : names_) {
      peers_.find_all(name, auth, handles_);
      if (first == kNoPeer && !handles_.empty()) first = *std::ranges::min_element(handles_);
    }
  };
  for (const std::uint32_t auth : key_.handles)
    if (handles_.empty()) look_under(auth);
  if (handles_.empty()) look_under(0);
  return first;
}

void Sender::look_again() noexcept {
  seen_ = peers_.changes();
  const bool stands = handle_ != kNoPeer && peers_.generation(handle_) == generation_;
  try {
    const PeerId found = find();
    if (!stands) handle_ = found;
  } catch (const std::bad_alloc&) {
    handles_.clear();
    if (!stands) handle_ = kNoPeer;  // unknown until the next look
    seen_ = ~std::uint64_t{0};
  }
  if (!stands) generation_ = handle_ == kNoPeer ? 0 : peers_.generation(handle_);
  if (handle_ != kNoPeer)
    reported_ = {peers_.reported(handle_)};
  else if (!key_.handles.empty())
    reported_ = {peers_.reported_of_key(key_.handles.front()), completion_flag::kAuthKey};
  else
    reported_ = {};
}

}  // namespace fab
