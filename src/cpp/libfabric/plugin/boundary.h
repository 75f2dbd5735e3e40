#pragma once

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "fabric/types/error.h"
#include "libfabric/plugin/loader.h"

// Where calls of C programs come in: no exception leaves the library, and outcomes are negative codes of
// fi_errno(3), which are the values of Errc.
namespace fab::fi {

constexpr int code(Errc error) noexcept { return -static_cast<int>(error); }

constexpr bool equal(Errc error, int code) noexcept { return static_cast<int>(error) == code; }
static_assert(equal(Errc::no_message, FI_ENOMSG) && equal(Errc::no_data, FI_ENODATA) &&
              equal(Errc::message_size, FI_EMSGSIZE) && equal(Errc::not_supported, FI_EOPNOTSUPP) &&
              equal(Errc::address_in_use, FI_EADDRINUSE) && equal(Errc::peer_lost, FI_ECONNRESET) &&
              equal(Errc::timeout, FI_ETIMEDOUT) && equal(Errc::unreachable, FI_EHOSTUNREACH) &&
              equal(Errc::already, FI_EALREADY) && equal(Errc::canceled, FI_ECANCELED) &&
              equal(Errc::key_rejected, FI_EKEYREJECTED) && equal(Errc::too_small, FI_ETOOSMALL) &&
              equal(Errc::bad_state, FI_EOPBADSTATE) && equal(Errc::error_available, FI_EAVAIL) &&
              equal(Errc::bad_flags, FI_EBADFLAGS) && equal(Errc::no_event_queue, FI_ENOEQ) &&
              equal(Errc::other_domain, FI_EDOMAIN) && equal(Errc::no_completion_queue, FI_ENOCQ) &&
              equal(Errc::truncated, FI_ETRUNC) && equal(Errc::no_key, FI_ENOKEY) &&
              equal(Errc::no_address_vector, FI_ENOAV) && equal(Errc::overrun, FI_EOVERRUN));

// The code of the exception that is being handled; its text goes to the log.
inline int caught(fi_log_subsys subsystem, const char* call) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    log_failure(subsystem, call, error.what());
    return code(error.code());
  } catch (const std::exception& error) {
    log_failure(subsystem, call, error.what());
    return code(shortage_or(error, Errc::io));
  } catch (...) {
    return -FI_EOTHER;
  }
}

// What `call` returns, or the code of what it throws. `name` is that of the function of libfabric.
template <class Call>
auto boundary(fi_log_subsys subsystem, const char* name, const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return caught(subsystem, name);
  }
}

// Puts a text into the room that a program has for it, if any, cut where that ends.
inline void copy_text(const char* text, char* room, std::size_t size) noexcept {
  if (!room || size == 0) return;
  std::strncpy(room, text, size);
  room[size - 1] = '\0';
}
// fi_cq_strerror(3) and fi_eq_strerror(3).
inline const char* error_text(int provider_error, char* room, std::size_t size) noexcept {
  const char* const text = describe(static_cast<Errc>(provider_error));
  copy_text(text, room, size);
  return text;
}
// Copies bytes into memory of `length` bytes, as many as fit, and sets `length` to how many there are.
inline int copy_bytes(const std::string& bytes, void* room, std::size_t& length) noexcept {
  const std::size_t size = std::exchange(length, bytes.size());
  if (const std::size_t fitting = std::min(size, bytes.size()); fitting != 0)
    std::memcpy(room, bytes.data(), fitting);
  return size < bytes.size() ? -FI_ETOOSMALL : 0;
}

}  // namespace fab::fi
