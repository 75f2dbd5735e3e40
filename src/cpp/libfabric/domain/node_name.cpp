#include "libfabric/domain/node_name.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/bytes/wire.h"
#include "base/memory/foreign_file.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"
#include "providers/compact_name.h"

namespace fab::fi {
namespace {

constexpr std::uint8_t kPlaceMark = 1;  // no other encoding of names begins so
constexpr std::size_t kMostShownBytes = 4096;

std::string prefix_of_port(std::uint16_t port) {
  return "pyfab-fi/" + std::to_string(::geteuid()) + "/" + std::to_string(port) + "/";
}

// A socket with this name in the kernel's list, which forgets it with its process.
OwnFd bind_shown(const std::string& text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (text.size() + 1 > sizeof address.sun_path) throw Error(Errc::invalid, "too long: " + text);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  OwnFd shown(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (!shown.valid() || ::bind(shown.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw Error(errno == EADDRINUSE ? Errc::address_in_use : shortage_or(errno, Errc::no_data),
                "cannot show the name of an endpoint at its port: " + std::string(std::strerror(errno)));
  return shown;
}

// Memory that others can read, and nobody can change any more.
OwnFd sealed_name(std::string_view bytes) {
  OwnFd memory(::memfd_create("pyfab name", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (!memory.valid() ||
      ::write(memory.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    throw Error(shortage_or(errno, Errc::no_memory),
                "no memory for the name of an endpoint: " + std::string(std::strerror(errno)));
  return memory;
}

}  // namespace

std::string place_on_node(std::uint16_t port) {
  WireWriter out;
  out.put(kPlaceMark).put(versions::kCompactName).put(port);
  std::string bytes = out.take();
  bytes.resize(kCompactNameBytes);
  return bytes;
}

bool is_place(std::string_view bytes) noexcept {
  return !bytes.empty() && static_cast<std::uint8_t>(bytes.front()) == kPlaceMark;
}

std::uint16_t port_of_place(std::string_view bytes) {
  WireReader in(bytes);
  in.get<std::uint8_t>();
  const auto version = in.get<std::uint8_t>();
  const auto port = in.get<std::uint16_t>();
  if (!in.ok() || version != versions::kCompactName)
    throw Error(Errc::invalid, "an address is of version " + std::to_string(version) +
                                   "; this library reads version " + std::to_string(versions::kCompactName));
  return port;
}

NodeName::NodeName(std::uint16_t port, std::string_view name)
    : memory_(sealed_name(name)),
      lock_(bind_shown(prefix_of_port(port))),
      shown_(bind_shown(prefix_of_port(port) + std::to_string(::getpid()) + "/" +
                        std::to_string(memory_.get()))) {}

std::string find_on_node(std::uint16_t port) {
  const std::string wanted = "@" + prefix_of_port(port);
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const auto at = line.find(wanted);
    std::int32_t pid = 0;
    int number = -1;
    if (at == std::string::npos) continue;
    const char* const end = line.data() + line.size();
    const auto [slash, wrong] = std::from_chars(line.data() + at + wanted.size(), end, pid);
    if (wrong != std::errc{} || slash == end || *slash != '/') continue;
    if (std::from_chars(slash + 1, end, number).ec != std::errc{}) continue;
    const ForeignFile file = open_foreign(pid, number, ForeignKind::sealed_memory, O_RDONLY);
    if (!file.fd.valid()) continue;
    std::string bytes(kMostShownBytes, '\0');
    const ssize_t count = ::pread(file.fd.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) continue;
    bytes.resize(static_cast<std::size_t>(count));
    return bytes;
  }
  throw Error(Errc::no_data, "no endpoint of this user is at port " + std::to_string(port) + " of this node");
}

}  // namespace fab::fi
