#include "fabric/completion/security_log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "fabric/completion/log_thread.h"

namespace fab {
namespace {

constexpr std::size_t kMostNotes = 64;
constexpr std::chrono::seconds kTellEvery(1);  // at most; what comes in between is told with the next event

std::atomic<SecurityLog::Outlet> security_outlet{nullptr};

}  // namespace

struct SecurityLog::State final : Untold {
  void tell() noexcept override;

  std::array<std::atomic<std::uint64_t>, kEvents> counts{};
  Mutex mutex;  // guards the following
  std::vector<Note> notes FAB_GUARDED_BY(mutex);
  Clock::time_point told FAB_GUARDED_BY(mutex){};  // when the thread was last woken
};

void SecurityLog::set_outlet(Outlet outlet) noexcept { security_outlet = outlet; }

SecurityLog::SecurityLog(bool threaded) : threaded_(threaded), state_(std::make_shared<State>()) {}

void SecurityLog::note(SecurityEvent event, std::string_view source, const char* what) noexcept try {
  state_->counts[static_cast<std::size_t>(event)].fetch_add(1, std::memory_order_relaxed);
  {
    const LockGuard lock(state_->mutex);
    auto& notes = state_->notes;
    const auto same = std::ranges::find_if(
        notes, [&](const Note& note) { return note.event == event && note.source == source; });
    if (same != notes.end())
      ++same->count;
    else if (notes.size() < kMostNotes)
      notes.push_back({event, std::string(source), what, 1});
    const auto now = Clock::now();
    if (!threaded_ || now - state_->told < kTellEvery) return;
    state_->told = now;
  }
  LogThread::push(state_);
} catch (const std::exception&) {
  return;
}

std::array<std::uint64_t, SecurityLog::kEvents> SecurityLog::counts() const noexcept {
  std::array<std::uint64_t, kEvents> counts{};
  std::ranges::transform(state_->counts, counts.begin(), [](const auto& count) { return count.load(); });
  return counts;
}

void SecurityLog::State::tell() noexcept {
  std::vector<Note> found;
  {
    const LockGuard lock(mutex);
    found.swap(notes);
  }
  const Outlet outlet = security_outlet;
  if (outlet && !found.empty()) outlet(found);
}

void SecurityLog::tell() noexcept {
  const auto state = state_;  // outlives the log, which the outlet may destroy
  state->tell();
}

}  // namespace fab
