#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace fab {

// Every outcome that the library knows. Values equal errno where one fits and the fabric codes (from 256)
// elsewhere, so that a code read by Python, a log or another process means the same.
enum class Errc : int {
  ok = 0,
  not_found = 2,            // ENOENT
  io = 5,                   // EIO: the storage behind memory failed
  too_big = 7,              // E2BIG
  closed = 9,               // EBADF: used after close, or inherited over fork
  again = 11,               // EAGAIN: full, nothing was taken
  no_memory = 12,           // ENOMEM
  access = 13,              // EACCES: rights of the region
  bounds = 14,              // EFAULT: outside of the region, or memory that is not there
  busy = 16,                // EBUSY
  invalid = 22,             // EINVAL
  too_many_files = 24,      // EMFILE: no descriptor is left, of this process or of the system
  not_supported_here = 38,  // ENOSYS
  no_message = 42,          // ENOMSG: none waits that fits
  no_data = 61,             // ENODATA: discovery found no match
  protocol = 71,            // EPROTO: the peer sent what no peer may send
  message_size = 90,        // EMSGSIZE
  not_encrypted = 93,       // EPROTONOSUPPORT: one side encrypts its links, and the other does not
  not_supported = 95,       // EOPNOTSUPP
  address_in_use = 98,      // EADDRINUSE
  peer_lost = 104,          // ECONNRESET
  timeout = 110,            // ETIMEDOUT
  unreachable = 113,        // EHOSTUNREACH
  already = 114,            // EALREADY
  canceled = 125,           // ECANCELED
  key_rejected = 129,       // EKEYREJECTED: unknown, closed or disabled key; authorization refused
  too_small = 257,
  bad_state = 258,
  error_available = 259,
  bad_flags = 260,
  no_event_queue = 261,
  other_domain = 262,
  no_completion_queue = 263,
  truncated = 265,
  no_key = 266,  // the requested key is in use
  no_address_vector = 267,
  overrun = 268,  // a completion queue lost entries
};

const char* name(Errc code) noexcept;      // "FI_ENOKEY"
const char* describe(Errc code) noexcept;  // one clause: what it means for an operation

// too_many_files or no_memory if a system call or an exception failed for that reason, else `otherwise`. So a
// lack that may pass is not taken for a lost peer or for a wrong argument.
Errc shortage_or(int error, Errc otherwise) noexcept;
Errc shortage_or(const std::exception& error, Errc otherwise) noexcept;

// Set-up and control calls throw this; data-path outcomes are completions.
class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

}  // namespace fab
