#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "fabric/types/types.h"

namespace fab {

// Which link carries the bytes to which peer, as the program is told (log `pyfab.links`): each way once, and
// with emphasis where a link that stands before it was passed over for something that can be mended.
// Thread-safe, and meant to be called under any lock: a thread tells the program.
class LinkLog final {
 public:
  struct Note {
    bool fallback;
    std::string text;
  };
  // Takes notes, and how many have been left out since the last call, without a lock. Must not throw.
  using Outlet = void (*)(std::span<const Note> notes, std::uint64_t left_out);
  static void set_outlet(Outlet outlet) noexcept;  // of this process; without one nothing is noted

  // `all`: every way is told, and not only fallbacks. `threaded`: without, the program is told in tell() only
  // (manual progress).
  LinkLog(bool all, bool threaded);
  bool all() const noexcept { return all_; }
  // `link`: the one that was taken; `why`: as Reach::why. Without memory for a note, nothing is told.
  void opened(PeerId peer, const std::string& link, const std::string& why) noexcept;
  // `passed_over`: why other links were not taken.
  void fell_back(PeerId peer, const std::string& link, const std::string& passed_over) noexcept;
  void tell() noexcept;  // tells what waits, in this thread

 private:
  struct State;
  void note(Note note);

  const bool all_, threaded_;
  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive the log
};

}  // namespace fab
