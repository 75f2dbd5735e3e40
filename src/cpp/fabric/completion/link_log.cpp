#include "fabric/completion/link_log.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "base/bytes/printable.h"
#include "base/locks/mutex.h"
#include "fabric/completion/log_thread.h"

namespace fab {
namespace {

constexpr std::size_t kMostLinkNotes = 256;  // of each kind

std::atomic<LinkLog::Outlet> link_outlet{nullptr};

}  // namespace

struct LinkLog::State final : Untold {
  void tell() noexcept override {
    std::vector<Note> found;
    LeftOut more;
    {
      const LockGuard lock(mutex);
      queued = false;
      found.swap(notes);
      more = std::exchange(left_out, {});
    }
    const Outlet outlet = link_outlet;
    if (outlet && !found.empty()) outlet(found, more);
  }

  Mutex mutex;  // guards the following
  std::vector<Note> notes FAB_GUARDED_BY(mutex);
  LeftOut left_out FAB_GUARDED_BY(mutex);
  bool queued FAB_GUARDED_BY(mutex) = false;  // the thread will tell
};

void LinkLog::set_outlet(Outlet outlet) noexcept { link_outlet = outlet; }

LinkLog::LinkLog(bool all, bool threaded)
    : all_(all), threaded_(threaded), state_(std::make_shared<State>()) {}

void LinkLog::opened(PeerId peer, const std::string& link, const std::string& why) noexcept try {
  if (all_) note(false, peer, link, ": " + why);
} catch (const std::exception&) {
  return;
}

void LinkLog::fell_back(PeerId peer, const std::string& link, const std::string& passed_over) noexcept try {
  note(true, peer, link, ", and not over " + passed_over);
} catch (const std::exception&) {
  return;
}

void LinkLog::note(bool fallback, PeerId peer, const std::string& link, const std::string& more) {
  if (!link_outlet.load()) return;
  std::string text = "peer " + std::to_string(peer) + " is reached over " + printable(link + more);
  State& state = *state_;
  {
    const LockGuard lock(state.mutex);
    if (std::cmp_less(std::ranges::count(state.notes, fallback, &Note::fallback), kMostLinkNotes))
      state.notes.push_back({fallback, std::move(text)});
    else
      ++(fallback ? state.left_out.fallbacks : state.left_out.ways);
    if (!threaded_ || std::exchange(state.queued, true)) return;
  }
  const auto begun = [&] {
    try {
      return LogThread::push(state_);
    } catch (const std::exception&) {  // no thread can be started now; the next note tries again
      return false;
    }
  };
  if (begun()) return;
  const LockGuard lock(state.mutex);
  state.queued = false;
}

void LinkLog::tell() noexcept {
  const auto state = state_;  // outlives the log, which the outlet may destroy
  state->tell();
}

}  // namespace fab
