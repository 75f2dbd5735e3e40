#include "base/process/identity.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/fd.h"
#include "base/locks/fork_gate.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace fab {
namespace {

void throw_shortage(const char* what) {
  if (is_shortage(errno)) throw std::system_error(errno, std::generic_category(), what);
}

// Where there is no /proc, the name of the machine has to do. Processes of two machines with one name then
// take each other's loopback network for theirs, and find nobody there.
std::string read_boot_id() {
  static constexpr const char* kFile = "/proc/sys/kernel/random/boot_id";
  const OwnFd file(::open(kFile, O_RDONLY | O_CLOEXEC));
  char text[64];
  const auto length = file.valid() ? ::read(file.get(), text, sizeof text) : -1;
  if (length < 0) throw_shortage(kFile);
  if (length > 0) return {text, static_cast<std::size_t>(length)};
  utsname system{};
  ::uname(&system);
  return std::string("machine ") + system.nodename;
}

// The same as long as the machine runs.
const std::string& boot_id() {
  static constinit MadeOnce<const std::string> known;
  return known.get(read_boot_id);
}

// Empty where there is no /proc.
std::string read_space(const char* path) {
  char link[64];
  const auto length = ::readlink(path, link, sizeof link);
  if (length < 0) throw_shortage(path);
  return {link, static_cast<std::size_t>(length < 0 ? 0 : length)};
}

// The number that the kernel gives a network name space; 0 before Linux 5.14.
std::string network_cookie() {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  const OwnFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) throw_shortage("socket");
  ::getsockopt(socket.get(), SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size);
  return "cookie " + std::to_string(cookie);
}

}  // namespace

std::string host_identity() {
  return boot_id() + "/" + read_space("/proc/self/ns/pid") + "/" + read_space("/proc/self/ns/user") + "/" +
         std::to_string(::geteuid());
}

std::string network_identity() {
  const std::string space = read_space("/proc/self/ns/net");
  return boot_id() + "/" + (space.empty() ? network_cookie() : space);
}

}  // namespace fab
