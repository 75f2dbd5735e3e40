#include "base/network/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>

namespace fab {
namespace {

std::string last_name_of_link(const std::string& link) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(link, error);
  return error ? std::string() : target.filename().string();
}

template <class T>
T read_value(const std::string& file, const T& fallback) {
  std::ifstream in(file);
  T value;
  return in >> value ? value : fallback;
}

// The PCI device that an interface belongs to; empty if there is none. Another bus may lie in between, such
// as that of virtio.
std::filesystem::path pci_device(const std::string& interface_folder) {
  std::error_code error;
  auto folder = std::filesystem::canonical(interface_folder + "/device", error);
  if (error) return {};
  for (; folder.has_relative_path(); folder = folder.parent_path())
    if (last_name_of_link(folder / "subsystem") == "pci") return folder;
  return {};
}

void describe_device(Interface& interface) {
  const std::string folder = "/sys/class/net/" + interface.name;
  interface.state = read_value<std::string>(folder + "/operstate", "");
  interface.driver = last_name_of_link(folder + "/device/driver");
  const long long megabits = read_value(folder + "/speed", -1LL);  // -1: unknown (sysfs-class-net)
  if (megabits > 0) interface.speed_bits_per_second = static_cast<std::uint64_t>(megabits) * 1'000'000;
  const auto device = pci_device(folder);
  interface.pci_address = device.filename().string();
  interface.numa_node =
      read_value(device.empty() ? folder + "/device/numa_node" : device.string() + "/numa_node", -1);
}

}  // namespace

std::vector<Interface> list_interfaces() {
  std::map<std::string, Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    if (is_shortage(errno)) throw std::system_error(errno, std::generic_category(), "getifaddrs");
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype([](ifaddrs* all) { ::freeifaddrs(all); })> owner(list);
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    const int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6 && family != AF_PACKET) continue;
    Interface& interface = found[at->ifa_name];
    interface.name = at->ifa_name;
    interface.loopback = at->ifa_flags & IFF_LOOPBACK;
    interface.up = at->ifa_flags & IFF_UP;
    if (family == AF_PACKET) continue;  // the entry by which interfaces without an address are listed
    const SocketAddress address(
        at->ifa_addr, at->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!address.link_local()) interface.addresses.push_back(address);
  }
  std::vector<Interface> interfaces;
  for (auto& [name, interface] : found) {
    std::ranges::stable_sort(interface.addresses, {}, &SocketAddress::v6);
    describe_device(interface);
    interfaces.push_back(std::move(interface));
  }
  std::ranges::stable_sort(interfaces, {}, [](const Interface& interface) { return !interface.loopback; });
  return interfaces;
}

}  // namespace fab
