#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/process/worker.h"

namespace fab {

// What strangers and peers do that costs them their connection.
enum class SecurityEvent : std::uint8_t {
  key_refused,     // what a caller proved is none of this side's keys
  caller_dropped,  // closed for a later one, before it had finished its handshake
  handshake_late,
  protocol,    // a peer or a caller sent what no peer may send
  half_frame,  // a peer began a frame and did not go on
  limit,       // a stream that is beyond a limit
};

// Counts such events, and tells the program of them (log `pyfab.security`). What waits to be told is bounded:
// events of one kind from one source are one note. Thread-safe, and meant to be called under any lock: the
// program is told by a thread of its own, which the first event starts.
class SecurityLog final {
 public:
  static constexpr std::size_t kEvents = 6;
  struct Note {
    SecurityEvent event{};
    std::string source{};   // where from: an address without its port
    const char* what = "";  // of the first of these events
    std::uint64_t count = 0;
  };
  // Takes notes, without a lock. Must not throw.
  using Outlet = void (*)(std::span<const Note> notes);
  static void set_outlet(Outlet outlet) noexcept;  // of this process

  // `threaded`: without, the program is told in tell() only (manual progress).
  explicit SecurityLog(bool threaded);
  // `what` is never destroyed. Without memory for a note, the event is only counted.
  void note(SecurityEvent event, std::string_view source, const char* what) noexcept;
  std::array<std::uint64_t, kEvents> counts() const noexcept;
  void tell() noexcept;  // tells what waits, in this thread
  void stop() noexcept;  // ends the thread; what it has not told waits for tell()

 private:
  struct State;
  using Work = std::shared_ptr<State>;
  static void tell_notes(Work& state) noexcept;

  const bool threaded_;
  const Work state_;  // shared with the thread, which may outlive the log
  Worker<Work> worker_{"pyfab-security", &tell_notes};
};

}  // namespace fab
