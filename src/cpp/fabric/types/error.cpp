#include "fabric/types/error.h"

#include <cerrno>
#include <new>
#include <system_error>

namespace fab {
namespace {

struct Row {
  Errc code;
  const char* name;
  const char* text;
};

constexpr Row kRows[] = {
    {Errc::ok, "FI_SUCCESS", "success"},
    {Errc::not_found, "FI_ENOENT", "there is no such thing"},
    {Errc::io, "FI_EIO", "the storage behind the memory failed: see the log of the system that has it"},
    {Errc::too_big, "FI_E2BIG", "more than the limit"},
    {Errc::closed, "FI_EBADF", "the object is closed"},
    {Errc::again, "FI_EAGAIN", "full for now"},
    {Errc::no_memory, "FI_ENOMEM", "no memory or table space left"},
    {Errc::access, "FI_EACCES", "the region does not grant this right"},
    {Errc::bounds, "FI_EFAULT", "outside of the region, or memory that is gone or that only devices reach"},
    {Errc::busy, "FI_EBUSY", "others still use the object"},
    {Errc::invalid, "FI_EINVAL", "invalid argument"},
    {Errc::too_many_files, "FI_EMFILE", "too many open files: no descriptor is left"},
    {Errc::not_supported_here, "FI_ENOSYS", "not available in this configuration"},
    {Errc::no_message, "FI_ENOMSG", "no message that fits waits"},
    {Errc::no_data, "FI_ENODATA", "nothing matches the request"},
    {Errc::protocol, "FI_EPROTO", "the peer broke the protocol"},
    {Errc::message_size, "FI_EMSGSIZE", "too long"},
    {Errc::not_encrypted, "FI_EPROTONOSUPPORT",
     "one side encrypts and the other does not: open both domains with encrypt=True, or neither"},
    {Errc::not_supported, "FI_EOPNOTSUPP", "operation not supported"},
    {Errc::address_in_use, "FI_EADDRINUSE", "the address is in use"},
    {Errc::peer_lost, "FI_ECONNRESET", "the peer is gone or stopped answering"},
    {Errc::timeout, "FI_ETIMEDOUT", "the time is over"},
    {Errc::unreachable, "FI_EHOSTUNREACH", "no link reaches the peer"},
    {Errc::already, "FI_EALREADY", "already done"},
    {Errc::canceled, "FI_ECANCELED", "canceled"},
    {Errc::key_rejected, "FI_EKEYREJECTED", "the target has no open region with this key"},
    {Errc::too_small, "FI_ETOOSMALL", "the buffer is too small"},
    {Errc::bad_state, "FI_EOPBADSTATE", "not possible in this state"},
    {Errc::error_available, "FI_EAVAIL", "an error entry comes first"},
    {Errc::bad_flags, "FI_EBADFLAGS", "flags that are not supported"},
    {Errc::no_event_queue, "FI_ENOEQ", "no event queue is bound"},
    {Errc::other_domain, "FI_EDOMAIN", "the object belongs to another domain"},
    {Errc::no_completion_queue, "FI_ENOCQ", "no completion queue is bound"},
    {Errc::overrun, "FI_EOVERRUN", "the queue was full and lost entries"},
    {Errc::truncated, "FI_ETRUNC", "the message was longer than the buffer"},
    {Errc::no_key, "FI_ENOKEY", "the key is in use"},
    {Errc::no_address_vector, "FI_ENOAV", "no address vector is bound"},
};

const Row& row(Errc code) noexcept {
  for (const Row& candidate : kRows)
    if (candidate.code == code) return candidate;
  static constexpr Row kOther{Errc::ok, "FI_EOTHER", "unknown error"};
  return kOther;
}

}  // namespace

const char* name(Errc code) noexcept { return row(code).name; }
const char* describe(Errc code) noexcept { return row(code).text; }

Errc shortage_or(int error, Errc otherwise) noexcept {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return Errc::too_many_files;
    case ENOMEM:
    case ENOBUFS:
      return Errc::no_memory;
    default:
      return otherwise;
  }
}

Errc shortage_or(const std::exception& error, Errc otherwise) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return Errc::no_memory;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return shortage_or(system->code().value(), otherwise);
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours ? shortage_or(static_cast<int>(ours->code()), otherwise) : otherwise;
}

}  // namespace fab
