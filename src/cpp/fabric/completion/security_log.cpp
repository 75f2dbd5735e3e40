#include "fabric/completion/security_log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "base/process/process.h"
#include "base/process/worker.h"

namespace fab {
namespace {

constexpr std::size_t kMostNotes = 64;
constexpr std::chrono::seconds kTellEvery(1);  // at most; what comes in between is told with the next event

std::atomic<SecurityLog::Outlet> security_outlet{nullptr};

}  // namespace

struct SecurityLog::State {
  std::array<std::atomic<std::uint64_t>, kEvents> counts{};
  Mutex mutex;  // guards the following
  std::vector<Note> notes FAB_GUARDED_BY(mutex);
  Clock::time_point told FAB_GUARDED_BY(mutex){};  // when the thread was last woken
};

// A child of fork() has no thread of its parent's, so it gets one of its own.
struct SecurityLog::Teller {
  const std::uint32_t generation = fork_generation();
  Worker<Work> worker{"pyfab-security", &tell_notes};
};
std::atomic<SecurityLog::Teller*> SecurityLog::teller{nullptr};

SecurityLog::Teller& SecurityLog::this_teller() {
  Teller* found = teller.load();
  if (found && found->generation == fork_generation()) return *found;
  auto made = std::make_unique<Teller>();
  if (teller.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;  // another thread was first
}

void SecurityLog::finish() noexcept {
  Teller* const found = teller.load();
  if (found && found->generation == fork_generation()) found->worker.stop();
}

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
  Worker<Work>::Items work{state_};
  this_teller().worker.push(work, true);
} catch (const std::exception&) {
  return;
}

std::array<std::uint64_t, SecurityLog::kEvents> SecurityLog::counts() const noexcept {
  std::array<std::uint64_t, kEvents> counts{};
  std::ranges::transform(state_->counts, counts.begin(), [](const auto& count) { return count.load(); });
  return counts;
}

void SecurityLog::tell_notes(Work& state) noexcept {
  std::vector<Note> notes;
  {
    const LockGuard lock(state->mutex);
    notes.swap(state->notes);
  }
  const Outlet outlet = security_outlet;
  if (outlet && !notes.empty()) outlet(notes);
}

void SecurityLog::tell() noexcept {
  Work state = state_;  // outlives the log, which the outlet may destroy
  tell_notes(state);
}

}  // namespace fab
