#include "fabric/completion/link_log.h"

#include <atomic>
#include <exception>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bytes/printable.h"
#include "base/locks/mutex.h"
#include "fabric/completion/log_thread.h"

namespace fab {
namespace {

constexpr std::size_t kMostNotes = 256;
constexpr std::size_t kMostKnown = 1 << 16;  // texts; once there are more, some may be told again

std::atomic<LinkLog::Outlet> link_outlet{nullptr};

}  // namespace

struct LinkLog::State final : Untold {
  void tell() noexcept override {
    std::vector<Note> found;
    std::uint64_t more = 0;
    {
      const LockGuard lock(mutex);
      found.swap(notes);
      more = std::exchange(left_out, 0);
    }
    const Outlet outlet = link_outlet;
    if (outlet && !found.empty()) outlet(found, more);
  }

  Mutex mutex;  // guards the following
  std::vector<Note> notes FAB_GUARDED_BY(mutex);
  std::uint64_t left_out FAB_GUARDED_BY(mutex) = 0;
  std::unordered_set<std::size_t> known FAB_GUARDED_BY(mutex);  // hashes of texts
};

void LinkLog::set_outlet(Outlet outlet) noexcept { link_outlet = outlet; }

LinkLog::LinkLog(bool all, bool threaded)
    : all_(all), threaded_(threaded), state_(std::make_shared<State>()) {}

void LinkLog::opened(PeerId peer, const std::string& link, const std::string& why) noexcept try {
  if (all_ && link_outlet.load())
    note({.fallback = false,
          .text = "peer " + std::to_string(peer) + " is reached over " + link + ": " + printable(why)});
} catch (const std::exception&) {
  return;
}

void LinkLog::fell_back(PeerId peer, const std::string& link, const std::string& passed_over) noexcept try {
  if (link_outlet.load())
    note({.fallback = true,
          .text = "peer " + std::to_string(peer) + " is reached over " + link + ", and not over " +
                  printable(passed_over)});
} catch (const std::exception&) {
  return;
}

void LinkLog::note(Note note) {
  bool first = false;
  {
    const LockGuard lock(state_->mutex);
    if (state_->known.size() >= kMostKnown) state_->known.clear();
    if (!state_->known.insert(std::hash<std::string>{}(note.text)).second) return;
    if (state_->notes.size() >= kMostNotes) {
      ++state_->left_out;
      return;
    }
    first = state_->notes.empty();
    state_->notes.push_back(std::move(note));
  }
  if (first && threaded_) LogThread::push(state_);
}

void LinkLog::tell() noexcept {
  const auto state = state_;  // outlives the log, which the outlet may destroy
  state->tell();
}

}  // namespace fab
