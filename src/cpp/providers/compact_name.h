#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "fabric/types/name.h"

// Names of endpoints in 56 or 64 bytes, for programs that have no room for more. They hold the first context
// of an endpoint over shm, over tcp, or over both, with one address for tcp (56 bytes), or with two tcp links
// of one IPv4 address each (64 bytes).
namespace fab {

inline constexpr std::size_t kCompactNameBytes = 56, kCompactRailsBytes = 64;

// No value: the name has more parts, addresses or contexts than there is room for.
std::optional<std::string> compact(const Name& name);
// Whether these bytes begin like such a name. Name::encode() begins in another way.
bool is_compact(std::string_view bytes) noexcept;
// The length of such a name, whose first byte this is.
std::size_t compact_length(char first) noexcept;
// The name again. What of its shm part has no room beside tcp is read from the segment of the process that it
// names; where that is on another host, or gone, the part stands for nobody, and compact() gives the same
// bytes for it. Throws Error(invalid) for what is no such name.
Name expand(std::string_view bytes);

}  // namespace fab
