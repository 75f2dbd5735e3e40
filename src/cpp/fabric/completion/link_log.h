#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "fabric/types/types.h"

namespace fab {

// Which link carries the bytes to which peer, as the program is told (log `pyfab.links`) whenever a path is
// opened; and, with emphasis, where a better link was passed over for something that can be mended.
// Thread-safe, and meant to be called under any lock: a thread tells the program.
class LinkLog final {
 public:
  struct Note {
    bool fallback;
    std::string text;
  };
  struct LeftOut {
    std::uint64_t ways = 0, fallbacks = 0;
  };
  // Takes notes, and how many there was no room for, without a lock. Must not throw.
  using Outlet = void (*)(std::span<const Note> notes, const LeftOut& left_out);
  static void set_outlet(Outlet outlet) noexcept;  // of this process; without one nothing is noted

  // `all`: the program wants to be told of every way, and not only of fallbacks. `threaded`: without, the
  // program is told in tell() only (manual progress).
  LinkLog(bool all, bool threaded);
  bool all() const noexcept { return all_; }
  // `link`: the one that was taken; `why`: as Reach::why. Without memory for a note, nothing is told.
  void opened(PeerId peer, const std::string& link, const std::string& why) noexcept;
  // `passed_over`: other links, and why they were not taken.
  void fell_back(PeerId peer, const std::string& link, const std::string& passed_over) noexcept;
  void tell() noexcept;  // tells what waits, in this thread

 private:
  struct State;
  void note(bool fallback, PeerId peer, const std::string& link, const std::string& more);

  const bool all_, threaded_;
  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive the log
};

}  // namespace fab
