#include "base/memory/memory_map.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/fd.h"

namespace fab {
namespace {

struct Area {
  std::uint64_t start, end;
  bool stays;
};

bool stays(std::uint64_t inode, std::string_view name) noexcept {
  // A segment of System V has its number for an inode, which may be 0.
  return (inode == 0 && !name.starts_with('/')) || name == "/dev/zero (deleted)" ||
         name == "/anon_hugepage (deleted)" || name == "/memfd:pyfab-memory (deleted)";
}

// The argument of PROCMAP_QUERY, which <linux/fs.h> has since Linux 6.11.
struct ProcmapQuery {
  std::uint64_t size, flags, address;
  std::uint64_t start, end, area_flags, page_size, offset, inode;
  std::uint32_t device_major, device_minor, name_size, build_id_size;
  std::uint64_t name, build_id;
};
static_assert(sizeof(ProcmapQuery) == 104);
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);

// The area that holds `address`, by PROCMAP_QUERY; no value where the kernel does not know that.
std::optional<Area> query(int maps, std::uint64_t address) noexcept {
  char name[4096] = {};
  ProcmapQuery query{};
  query.size = sizeof query;
  query.address = address;
  query.name_size = sizeof name;
  query.name = reinterpret_cast<std::uint64_t>(name);
  if (::ioctl(maps, kProcmapQuery, &query) != 0) {
    if (errno == ENOENT) return Area{.start = address, .end = address, .stays = false};
    return std::nullopt;
  }
  return Area{.start = query.start, .end = query.end, .stays = stays(query.inode, name)};
}

// The area that holds `address`, by the text of /proc/self/maps, for kernels before 6.11.
Area look_up(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uint64_t start = 0, end = 0, inode = 0;
    char dash = 0;
    std::string rights, offset, device, name;
    fields >> std::hex >> start >> dash >> end >> rights >> offset >> device >> std::dec >> inode >> std::ws;
    std::getline(fields, name);
    if (address >= start && address < end) return {.start = start, .end = end, .stays = stays(inode, name)};
  }
  return {.start = address, .end = address, .stays = false};
}

}  // namespace

bool pages_stay_until_unmapped(AddressRange range) noexcept try {
  const OwnFd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  while (range.length > 0) {
    const auto asked = maps.valid() ? query(maps.get(), range.start) : std::nullopt;
    const Area area = asked ? *asked : look_up(range.start);
    if (!area.stays) return false;
    const std::uint64_t part = std::min(range.length, area.end - range.start);
    range = {.start = range.start + part, .length = range.length - part};
  }
  return true;
} catch (const std::exception&) {
  return false;
}

std::vector<AddressRange> backed_parts(AddressRange range, bool writable) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) throw std::system_error(errno, std::generic_category(), "/proc/self/maps");
  std::vector<AddressRange> parts;
  for (std::string line; std::getline(maps, line);) {  // start-end rights …
    const char* const stop = line.data() + line.size();
    std::uint64_t start = 0, end = 0;
    const auto dash = std::from_chars(line.data(), stop, start, 16);
    const auto space = dash.ptr < stop ? std::from_chars(dash.ptr + 1, stop, end, 16) : dash;
    if (stop - space.ptr < 3) continue;
    if (start >= range.end()) break;
    if (end <= range.start || space.ptr[1] != 'r' || (writable && space.ptr[2] != 'w')) continue;
    start = std::max(start, range.start);
    end = std::min(end, range.end());
    // A mapping that another thread extends while this is read may be listed twice.
    if (!parts.empty() && start <= parts.back().end())
      parts.back().length = std::max(end, parts.back().end()) - parts.back().start;
    else
      parts.push_back({.start = start, .length = end - start});
  }
  return parts;
}

}  // namespace fab
