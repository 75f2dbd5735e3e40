#include "fab/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

using fab::Memory;

TEST_CASE("what is named is borrowed, what is moved in or shared is kept") {
  std::vector<std::uint32_t> named(5);
  const Memory borrowed(named);
  CHECK(borrowed.data() == reinterpret_cast<std::byte*>(named.data()));
  CHECK(borrowed.size() == 20);
  CHECK_FALSE(borrowed.owner());

  const void* const place = named.data();
  const Memory kept(std::move(named));
  CHECK(kept.data() == place);
  CHECK(kept.owner());
  CHECK(kept.as<std::uint32_t>().size() == 5);

  const auto shared = std::make_shared<std::vector<double>>(3);
  {
    const Memory also(shared);
    CHECK(also.size() == 24);
    CHECK(shared.use_count() == 2);
  }
  CHECK(shared.use_count() == 1);

  CHECK(Memory(std::shared_ptr<std::vector<int>>()).size() == 0);

  std::array<char, 7> array{};
  CHECK(Memory(array).size() == 7);
  CHECK(Memory(std::span(array).subspan(2)).size() == 5);
}

// It could be neither borrowed nor kept, or its bytes mean nothing elsewhere.
static_assert(!std::is_constructible_v<Memory, const std::vector<int>>);
static_assert(!std::is_constructible_v<Memory, std::vector<std::string>>);
static_assert(!std::is_constructible_v<Memory, std::vector<std::string>&>);
static_assert(!std::is_constructible_v<Memory, std::shared_ptr<std::vector<std::string>>>);
static_assert(std::is_constructible_v<Memory, std::string_view>);

TEST_CASE("memory of a const range can only be read") {
  const std::string text = "twelve bytes";
  CHECK_FALSE(Memory(text).writable());
  CHECK_FALSE(Memory(text).part(2, 3).writable());
  CHECK_FALSE(Memory(std::span<const char>(text)).writable());
  std::string other = text;
  CHECK(Memory(other).writable());
}

TEST_CASE("a part is within the whole") {
  const Memory whole(std::vector<char>(100));
  const Memory part = whole.part(30, 70);
  CHECK(part.data() == whole.data() + 30);
  CHECK(part.owner() == whole.owner());
  CHECK_THROWS_AS((void)whole.part(31, 70), std::out_of_range);
  CHECK_THROWS_AS((void)whole.part(101, 0), std::out_of_range);
}

TEST_CASE("allocated memory is zeroed, and goes with its last holder") {
  Memory memory = fab::allocate(1 << 20);
  CHECK(memory.size() == 1 << 20);
  CHECK(std::ranges::all_of(memory.as<std::byte>(), [](std::byte byte) { return byte == std::byte{}; }));
  const std::weak_ptr<const void> there = memory.owner();
  const Memory part = memory.part(5, 5);
  memory = {};
  CHECK_FALSE(there.expired());
}
