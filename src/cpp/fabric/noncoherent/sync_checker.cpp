#include "fabric/noncoherent/sync_checker.h"

#include <algorithm>

namespace fab {
namespace {

constexpr std::size_t kMostMeetings = 1000;  // that one region remembers

}  // namespace

SyncReport SyncChecker::report(SyncReport::Kind kind, SyncSide side, Extent range,
                               Event event) const noexcept {
  return {
      .kind = kind, .side = side, .region = region_, .start = range.start, .end = range.end, .event = event};
}

void SyncChecker::met(Event event, Extent stored) {
  const SyncSide side = event == Event::get ? SyncSide::read : SyncSide::write;
  for (Meeting& before : meetings_)
    if (before.event == event && before.range.touches(stored)) return before.range.include(stored);
  if (meetings_.size() < kMostMeetings) meetings_.push_back({side, event, stored});
}

void SyncChecker::put(Event event, Extent range) {
  // Ranges that touch are merged, so that they stay few.
  auto next = puts_.upper_bound(range.start);
  if (next != puts_.begin() && std::prev(next)->second.end >= range.start) --next;
  while (next != puts_.end() && next->first <= range.end) {
    range.include({next->first, next->second.end});
    next = puts_.erase(next);
  }
  puts_[range.start] = {range.end, event};
}

// The first range of puts_ that overlaps `range`, or else the first one behind it.
SyncChecker::Puts::iterator SyncChecker::first_put(Extent range) {
  const auto next = puts_.upper_bound(range.start);
  return next != puts_.begin() && std::prev(next)->second.end > range.start ? std::prev(next) : next;
}

// Cuts `range` out of puts_; true if any of it was there.
bool SyncChecker::take_puts(Extent range) {
  bool any = false;
  for (auto next = first_put(range); next != puts_.end() && next->first < range.end; any = true) {
    const auto [start, put] = *next;
    next = puts_.erase(next);
    if (start < range.start) puts_[start] = {range.start, put.event};
    if (range.end < put.end) puts_[range.end] = put;
  }
  return any;
}

// Forgets the puts that overlap `range`, because a report tells of them.
void SyncChecker::drop_puts(Extent range) {
  auto next = first_put(range);
  while (next != puts_.end() && next->first < range.end) next = puts_.erase(next);
}

bool SyncChecker::called(SyncSide side, Extent range, const ShadowMemory::Effect& effect,
                         SyncReports& found) {
  using Kind = SyncReport::Kind;
  bool late = false;
  std::erase_if(meetings_, [&](const Meeting& meeting) {
    if (meeting.side != side || !meeting.range.overlaps(range)) return false;
    found.push_back(report(Kind::late, side, meeting.range, meeting.event));
    return late = true;
  });
  // The CPU has stored over what peers had put, and no call came in between.
  if (!effect.conflict.empty() && side == SyncSide::read) {
    std::erase_if(meetings_, [&](const Meeting& meeting) {
      return meeting.side == SyncSide::write && meeting.range.overlaps(effect.conflict);
    });
    drop_puts(effect.conflict);
    found.push_back(report(Kind::missing, SyncSide::write, effect.conflict, Event::put));
  } else if (!effect.conflict.empty() && !late) {
    found.push_back(report(Kind::late, side, effect.conflict, Event::put));
  }
  const bool shown = side == SyncSide::write && take_puts(range);
  return late || shown || effect.any();
}

void SyncChecker::finish(SyncReports& found) {
  for (const Meeting& meeting : meetings_) {
    found.push_back(report(SyncReport::Kind::missing, meeting.side, meeting.range, meeting.event));
    if (meeting.side == SyncSide::write) drop_puts(meeting.range);
  }
  for (const auto& [start, put] : puts_)
    found.push_back(report(SyncReport::Kind::missing, SyncSide::write, {start, put.end}, put.event));
  meetings_.clear();
  puts_.clear();
}

}  // namespace fab
