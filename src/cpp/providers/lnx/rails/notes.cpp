#include "providers/lnx/rails/notes.h"

namespace fab::lnx {

bool Notes::send() noexcept {
  const bool of_messages = !journal_.notes().empty();
  const bool due = journal_.mark_is_due();
  if (!of_messages && (!due || mark_.under_way)) return false;
  // mark() looks at all open requests, so that notes about messages take it along only where it is due.
  const std::uint64_t mark = due ? journal_.mark() : 0;
  bool sent = false;
  // If a rail takes nothing more, the notes go over the others. Otherwise they would gather for as long as
  // messages are sent.
  for (const auto& rail : rails_) {
    if (of_messages ? journal_.notes().empty() : sent) break;
    if (!rails_.usable(*rail)) continue;
    sent |= of_messages ? send_on(*rail, mark) : send_one(*rail, mark_, mark, nullptr);
  }
  if (sent && due) journal_.mark_is_told();
  return sent;
}

// Sends notes about messages, as many as the rail takes; true if any was sent.
bool Notes::send_on(Rail& rail, std::uint64_t mark) noexcept {
  bool sent = false;
  while (Request* const message = journal_.notes().front()) {
    if (parameters_.slice.spent() || !rails_.usable(rail)) break;
    RequestQueue::leave(*message);
    if (!send_one(rail, message->posting, mark, message)) {
      journal_.notes().push_back(*message);
      break;
    }
    sent = true;
  }
  return sent;
}

bool Notes::send_one(Rail& rail, Posting& posting, std::uint64_t mark, Request* message) noexcept {
  const FrameHeader note{.type = FrameType::settled, .total = mark, .id = message ? message->number : 0};
  return rail.post_control(posting, Posting::Kind::note, note, message);
}

void Notes::ended(Posting& note) noexcept {
  Request* const message = note.request;
  if (note.completion().error == Errc::ok) {
    journal_.mark_is_known(note.frame.total);
    if (message) journal_.recycle(*message);
  } else {
    journal_.mark_was_lost();
    if (message) journal_.notes().push_back(*message);
  }
}

}  // namespace fab::lnx
