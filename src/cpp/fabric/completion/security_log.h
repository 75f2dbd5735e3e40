#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

// How the program names them: in statistics, and as a kind of line in the log (pyfab.logs.security).
struct SecurityEventNames {
  const char* count;
  const char* kind;
};
inline constexpr std::array<SecurityEventNames, 6> kSecurityEvents = {{
    {"refused_keys", "another key"},
    {"dropped_callers", "limit reached"},
    {"late_handshakes", "deadline passed"},
    {"broken_protocols", "protocol broken"},
    {"half_frames", "deadline passed"},
    {"limits", "limit reached"},
}};  // by SecurityEvent
static_assert(kSecurityEvents.size() == static_cast<std::size_t>(SecurityEvent::limit) + 1);

// Counts such events, and tells the program of them (log `pyfab.security`). What waits to be told is bounded:
// events of one kind from one source are one note. Thread-safe, and meant to be called under any lock: the
// program is told by a thread, which the first event of the process starts, and for which no log waits.
class SecurityLog final {
 public:
  static constexpr std::size_t kEvents = kSecurityEvents.size();
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

 private:
  struct State;

  const bool threaded_;
  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive the log
};

}  // namespace fab
