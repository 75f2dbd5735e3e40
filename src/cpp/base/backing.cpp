#include "base/backing.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <system_error>

namespace fab {

std::vector<AddressSpan> backed_spans(std::uint64_t start, std::uint64_t length, bool writable) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                             &std::fclose);
  if (!maps) throw std::system_error(errno, std::generic_category(), "/proc/self/maps");
  std::vector<AddressSpan> spans;
  char line[512];
  bool whole = true;  // the next piece starts a line
  while (std::fgets(line, sizeof line, maps.get())) {
    const bool starts_line = whole;
    whole = false;
    for (const char* at = line; *at; ++at) whole |= *at == '\n';
    std::uint64_t from = 0, to = 0;
    char rights[5] = {};
    if (!starts_line || std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, rights) != 3) continue;
    if (from >= start + length) break;
    if (to <= start || rights[0] != 'r' || (writable && rights[1] != 'w')) continue;
    from = from < start ? start : from;
    to = to > start + length ? start + length : to;
    if (!spans.empty() && spans.back().start + spans.back().length == from)
      spans.back().length += to - from;
    else
      spans.push_back({from, to - from});
  }
  return spans;
}

}  // namespace fab
