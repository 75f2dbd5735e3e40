#include "base/memory/memory_map.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include "base/memory/mapping.h"

namespace fab {
namespace {

TEST_CASE("what is backed of a range") {
  const std::size_t size = 8 * page_size();
  void* const reserved = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(reserved != MAP_FAILED);
  char* const start = static_cast<char*>(reserved);
  const auto address = reinterpret_cast<std::uint64_t>(start);
  const std::uint64_t page = page_size();
  CHECK(backed_parts({.start = address, .length = size}, false).empty());
  REQUIRE(::mprotect(start + page, 2 * page, PROT_READ | PROT_WRITE) == 0);
  REQUIRE(::mprotect(start + 3 * page, page, PROT_READ) == 0);
  REQUIRE(::mprotect(start + 6 * page, page, PROT_READ | PROT_WRITE) == 0);
  const auto readable = backed_parts({.start = address, .length = size}, false);
  REQUIRE(readable.size() == 2);
  CHECK(readable[0].start == address + page);
  CHECK(readable[0].length == 3 * page);
  CHECK(readable[1].start == address + 6 * page);
  CHECK(readable[1].length == page);
  CHECK(backed_parts({.start = address, .length = size}, true)[0].length == 2 * page);
  const auto inner = backed_parts({.start = address + page + 5, .length = 10}, true);
  REQUIRE(inner.size() == 1);
  CHECK(inner[0].start == address + page + 5);
  CHECK(inner[0].length == 10);
  ::munmap(start, size);
}

}  // namespace
}  // namespace fab
