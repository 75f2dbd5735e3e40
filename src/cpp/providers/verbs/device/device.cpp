#include "providers/verbs/device/device.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/locks/mutex.h"
#include "base/network/interfaces.h"
#include "base/process/process.h"
#include "fabric/types/error.h"
#include "fabric/types/peer_id.h"

namespace fab::verbs {
namespace {

// Bytes of one work request. A device tells nothing of a request before its end, and that is the sign of life
// that deadlines wait for: 16 MiB take a third of a second at 400 Mbit/s.
constexpr std::uint64_t kLongestRequest = 16u << 20;

// A device that cannot be looked at because something has run out is not a device that is not there.
void throw_shortage(int error, const char* what) {
  if (is_shortage(error)) throw std::system_error(error, std::generic_category(), what);
}

// The addresses of this machine by device and port: of each address, the port that rdma_cm chooses for a
// connection from it.
using Port = std::pair<const ibv_context*, std::uint8_t>;
std::map<Port, std::vector<SocketAddress>> addresses_by_port() {
  std::map<Port, std::vector<SocketAddress>> found;
  const OwnEventChannel events(library().create_event_channel());
  if (!events) {
    throw_shortage(errno, "rdma_create_event_channel");
    return found;
  }
  for (const Interface& interface : list_interfaces())
    for (const SocketAddress& address : interface.addresses) {
      if (!interface.up || interface.loopback) continue;
      rdma_cm_id* made = nullptr;
      if (library().create_id(events.get(), &made, nullptr, RDMA_PS_TCP) != 0) {
        throw_shortage(errno, "rdma_create_id");
        continue;
      }
      const OwnId id(made);
      const SocketAddress any_port = address.with_port(0);
      if (library().bind_addr(made, const_cast<sockaddr*>(any_port.get())) != 0)
        throw_shortage(errno, "rdma_bind_addr");
      else if (made->verbs)
        found[{made->verbs, made->port_num}].push_back(address);
    }
  return found;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::filesystem::path sysfs(const Device& device) {
  return std::filesystem::path("/sys/class/infiniband") / library().get_device_name(device.context->device);
}

std::filesystem::path sysfs_port(const Device& device) {
  return sysfs(device) / "ports" / std::to_string(device.port);
}

std::string gid_bytes(const SocketAddress& address) {
  const std::string bytes = address.bytes();
  return address.v6() ? bytes : std::string(10, '\0') + "\xff\xff" + bytes;
}

std::uint64_t speed_of(const ibv_port_attr& port) noexcept {
  static constexpr double kLaneGigabits[] = {2.5, 5, 10, 10, 14.0625, 25.78125, 53.125, 106.25};
  static constexpr unsigned kLanes[] = {1, 4, 8, 12, 2};
  const auto bit = [](unsigned value) { return static_cast<unsigned>(std::countr_zero(value)); };
  if (port.active_speed == 0 || port.active_width == 0) return 0;
  const unsigned speed = bit(port.active_speed), width = bit(port.active_width);
  if (speed >= std::size(kLaneGigabits) || width >= std::size(kLanes)) return 0;
  return static_cast<std::uint64_t>(kLaneGigabits[speed] * 1e9) * kLanes[width];
}

bool query(Device& device) {
  ibv_port_attr port{};
  if (const int error = library().query_port(device.context, device.port,
                                             reinterpret_cast<_compat_ibv_port_attr*>(&port))) {
    throw_shortage(error, "ibv_query_port");
    return false;
  }
  device.state = port.state;
  device.mtu = port.active_mtu;
  device.link_layer = port.link_layer;
  device.lid = port.lid;
  device.needs_gid = (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  device.speed_bits_per_second = speed_of(port);
  device.max_message = std::clamp<std::uint64_t>(port.max_msg_sz, 4096, kLongestRequest);
  return true;
}

const char* layer_name(const Device& device) noexcept {
  if (device.iwarp()) return "iWARP";
  return device.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "RoCE";
}

std::string problem_of(const Device& device) {
  if (device.state != IBV_PORT_ACTIVE)
    return device.name + " has no active port; check the cable and that the interface is up (`rdma link`)";
  if (device.addresses.empty() && !reached_without_ip(device))
    return device.name +
           " has no IP address that connections could be made through, and no GID or LID in place of one; "
           "give an address to its network interface (see also " +
           (sysfs_port(device) / "gids").string() + ")";
  return "";
}

// Whether a folder is there and has something in it. std::filesystem::is_empty() ends the process where
// memory lacks.
bool has_entries(const char* folder) {
  OwnFd opened(::openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const entries = opened.valid() ? ::fdopendir(opened.get()) : nullptr;
  if (!entries) {
    throw_shortage(errno, folder);
    return false;
  }
  opened.release();
  bool any = false;
  while (const dirent* const entry = ::readdir(entries)) any = any || entry->d_name[0] != '.';
  ::closedir(entries);
  return any;
}

}  // namespace

// rdma-core takes one offset in soft-iWARP's file, SIW_INVAL_UOBJ_KEY of <rdma/siw-abi.h>, for a sign of
// failure. So creating a queue that the kernel places at that offset fails: the eighth queue pair, for
// instance, in a process with a completion queue of 16384 entries. A queue from offset 0 to beyond that one
// occupies it, and is never destroyed.
void prepare(const Device& device) {
  constexpr std::uint32_t kSoftIwarp = 0x626d74;  // vendor
  constexpr int kRefusedOffset = 0x90000, kEntryBytes = 32;
  static constinit Mutex mutex;
  static std::set<const ibv_context*> prepared FAB_GUARDED_BY(mutex);
  const LockGuard lock(mutex);
  if (device.limits.vendor_id != kSoftIwarp || prepared.contains(device.context)) return;
  if (library().create_cq(device.context, kRefusedOffset / kEntryBytes + 1, nullptr, nullptr, 0))
    prepared.insert(device.context);
}

std::vector<Device> list_devices() try {
  std::vector<Device> devices;
  // A machine without devices needs no libraries.
  if (!has_entries("/sys/class/infiniband")) return devices;
  // rdma_cm keeps the devices that it has opened. A child of fork() must not use those of its parent.
  constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  static constinit std::atomic<std::uint64_t> opened_in{kNowhere};
  std::uint64_t expected = kNowhere;
  opened_in.compare_exchange_strong(expected, fork_generation());
  if (opened_in != fork_generation() || !find_library()) return devices;
  int count = 0;
  ibv_context** const contexts = library().get_devices(&count);
  if (!contexts) {
    throw_shortage(errno, "rdma_get_devices");
    return devices;
  }
  // This frees the list only: rdma_cm keeps the devices open.
  const std::unique_ptr<ibv_context*, decltype(&::rdma_free_devices)> owner(contexts, library().free_devices);
  const auto addresses = addresses_by_port();
  for (int i = 0; i < count; ++i) {
    const std::string name = library().get_device_name(contexts[i]->device);
    Device device;
    device.context = contexts[i];
    if (const int failure = library().query_device(device.context, &device.limits)) {
      throw_shortage(failure, "ibv_query_device");
      continue;
    }
    const std::uint8_t ports = device.limits.phys_port_cnt;
    for (device.port = 1; device.port <= ports; ++device.port) {
      if (!query(device)) continue;
      device.name = name;
      device.alias = name + "/" + std::to_string(device.port);
      if (ports > 1) std::swap(device.name, device.alias);
      const auto found = addresses.find({device.context, device.port});
      device.addresses = found == addresses.end() ? std::vector<SocketAddress>() : found->second;
      devices.push_back(device);
    }
  }
  // A name without a device means the first that can be used, and an IP address is the safer way.
  std::ranges::sort(devices, {}, [](const Device& device) {
    return std::pair(device.addresses.empty(), std::string_view(device.name));
  });
  return devices;
} catch (const std::exception& error) {
  if (shortage_or(error, Errc::ok) != Errc::ok) throw;
  return {};
}

void refuse(const Device& device, const std::string& what) {
  const int error = errno;
  std::string message = "verbs: device " + device.name + " gives no " + what + ": " + std::strerror(error);
  rlimit locked{};
  if (error == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    message += "; this process may lock " + std::to_string(locked.rlim_cur / 1024) +
               " KiB of memory, raise that limit (ulimit -l)";
  throw Error(shortage_or(error, Errc::no_memory), message);
}

OwnPd open_protection_domain(const Device& device) {
  prepare(device);
  OwnPd opened(library().alloc_pd(device.context));
  if (!opened) refuse(device, "protection domain");
  return opened;
}

void make_nonblocking(int fd) {
  check_call(::fcntl(fd, F_SETFL, check_call(::fcntl(fd, F_GETFL), "fcntl") | O_NONBLOCK), "fcntl");
  check_call(::fcntl(fd, F_SETFD, FD_CLOEXEC), "fcntl");
}

OwnCompletionChannel open_completion_channel(const Device& device) {
  OwnCompletionChannel channel(library().create_comp_channel(device.context));
  if (!channel) refuse(device, "completion events");
  make_nonblocking(channel->fd);
  return channel;
}

OwnEventChannel open_event_channel(const Device& device) {
  OwnEventChannel channel(library().create_event_channel());
  if (!channel) refuse(device, "connection events");
  make_nonblocking(channel->fd);
  return channel;
}

std::vector<Gid> list_gids(const Device& device) {
  std::vector<Gid> gids;
  const auto folder = sysfs_port(device);
  for (int index = 0;; ++index) {
    const std::string number = std::to_string(index), text = first_line(folder / "gids" / number);
    if (text.empty()) return gids;
    std::string bytes(16, '\0');
    if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) != 1 || bytes == std::string(16, '\0')) continue;
    gids.push_back({index, std::move(bytes), first_line(folder / "gid_attrs" / "types" / number)});
  }
}

namespace {

// Not over iWARP, nor over devices without reliable connections, which have transports of their own.
bool has_packets_of_infiniband(const Device& device) noexcept {
  return device.context->device->transport_type == IBV_TRANSPORT_IB &&
         (device.link_layer == IBV_LINK_LAYER_INFINIBAND || device.link_layer == IBV_LINK_LAYER_ETHERNET);
}

}  // namespace

std::optional<Gid> usual_gid(const Device& device) {
  if (!has_packets_of_infiniband(device)) return {};
  const bool roce = device.link_layer == IBV_LINK_LAYER_ETHERNET;
  // Those of v1 stay in one Ethernet; so do link-local ones, which every port has.
  const auto reach_of = [&](const Gid& gid) {
    if (gid.type != "RoCE v2") return gid.type == "IB/RoCE v1" ? 1 : 0;
    return !roce ? 0 : gid.bytes.starts_with("\xfe\x80") ? 2 : 3;
  };
  std::optional<Gid> best;
  for (const Gid& gid : list_gids(device))
    if (reach_of(gid) > (best ? reach_of(*best) : 0)) best = gid;
  return best;
}

bool reached_without_ip(const Device& device) {
  return has_packets_of_infiniband(device) &&
         ((device.link_layer == IBV_LINK_LAYER_INFINIBAND && device.lid != 0) || usual_gid(device));
}

SocketAddress address_of_gid(const Device& device, const std::string& index) {
  std::string there;
  for (const Gid& gid : list_gids(device))
    for (const SocketAddress& address : device.addresses) {
      if (gid.bytes != gid_bytes(address) || gid.type != "RoCE v2") continue;
      const std::string number = std::to_string(gid.index);
      if (number == index) return address;
      there += (there.empty() ? "" : ", ") + number + " (" + address.host() + ", " + gid.type + ")";
    }
  throw Error(Errc::invalid,
              "verbs_gid_index is \"" + index + "\", which is not the GID of an address that " + device.name +
                  " can be reached at; " +
                  (there.empty() ? "it has none, leave the setting out" : "there is " + there));
}

Info describe(const Device& device) {
  Info info;
  info.provider = "verbs";
  info.fabric = device.iwarp()                                   ? "iwarp"
                : device.link_layer == IBV_LINK_LAYER_INFINIBAND ? "infiniband"
                                                                 : "roce";
  info.domain = device.name;
  info.alias = device.alias;
  info.addr_format = "bundle";
  info.caps = caps::kRma | caps::kAtomic | caps::kRead | caps::kWrite | caps::kRemoteRead |
              caps::kRemoteWrite | caps::kRmaEvent | caps::kRemoteData | caps::kMessage | caps::kTagged |
              caps::kDirectedReceive | caps::kMultiReceive | caps::kNamedReceive | caps::kRmaPmem |
              caps::kLocalComm | caps::kRemoteComm;
  info.max_group_id = kMaxGroupId;
  info.inject_size = 4096;
  info.links = {"verbs:" + device.name};
  const auto folder = sysfs(device);
  NicInfo nic;
  nic.name = device.name;
  nic.speed_bits_per_second = device.speed_bits_per_second;
  std::error_code error;
  if (const auto bus = std::filesystem::read_symlink(folder / "device", error); !error)
    nic.pci_address = bus.filename().string();
  if (const auto driver = std::filesystem::read_symlink(folder / "device" / "driver", error); !error)
    nic.driver = driver.filename().string();
  const std::string node = first_line(folder / "device" / "numa_node");
  std::from_chars(node.data(), node.data() + node.size(), nic.numa_node);  // none: stays -1
  nic.state = std::string(device.state == IBV_PORT_ACTIVE ? "up" : "down") + ", " + layer_name(device) +
              ", MTU " + std::to_string(128u << device.mtu);
  if (!device.addresses.empty() && !device.iwarp())
    for (const Gid& gid : list_gids(device))
      if (gid.bytes == gid_bytes(device.addresses.front()))
        nic.state += ", GID " + std::to_string(gid.index) + " " + gid.type;
  if (device.addresses.empty()) nic.state += ", no IP address";
  info.nics = {std::move(nic)};
  if (!device.addresses.empty()) info.src_addr = device.addresses.front().host();
  info.why = problem_of(device);
  info.usable = info.why.empty();
  return info;
}

}  // namespace fab::verbs
