#include "fabric/messages/sender.h"

#include <new>

namespace fab {

void Sender::known_as(PeerId peer) noexcept {
  handle_ = peer;
  generation_ = peers_.generation(peer);
  seen_ = ~std::uint64_t{0};
}

// The lowest of the handles that the first name has under which there are any. Takes no memory, so that a
// peer is known also when memory is lacking: its loss has to be told then.
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

// Fills in handles_, which is empty. Throws std::bad_alloc.
void Sender::find_all() {
  const auto look_under = [this](std::uint32_t auth) {
    for (const Part& name : names_) peers_.find_all(name, auth, handles_);
  };
  for (const std::uint32_t auth : key_.handles)
    if (handles_.empty()) look_under(auth);
  if (handles_.empty()) look_under(0);
}

void Sender::look_again() noexcept {
  seen_ = peers_.changes();
  const bool stands = handle_ != kNoPeer && peers_.generation(handle_) == generation_;
  try {
    handles_.clear();
    if (!stands) handle_ = kNoPeer;
    if (!stands && peers_.size() != 0) handle_ = find();
    if (handle_ != kNoPeer) find_all();
  } catch (const std::bad_alloc&) {
    handles_.clear();  // unknown until the next look
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
