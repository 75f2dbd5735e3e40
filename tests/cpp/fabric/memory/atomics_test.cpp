#include "fabric/memory/atomics.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/memory/fault_guard.h"
#include "base/memory/mapping.h"

namespace fab {
namespace {

template <class T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, float>) return DataType::f32;
  if constexpr (std::is_same_v<T, double>) return DataType::f64;
  constexpr int kLog = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return static_cast<DataType>(2 * kLog + (std::is_unsigned_v<T> ? 1 : 0));
}

template <class T>
T run(AtomicOp op, T target, T operand, T compare, T* former = nullptr) {
  alignas(8) T cells[3] = {T(1), target, T(2)};
  T result{};
  const auto bytes = [](auto& value) { return reinterpret_cast<std::byte*>(&value); };
  REQUIRE(apply_atomic({op, type_of<T>(), bytes(operand), bytes(compare), bytes(result)}, bytes(cells[1]),
                       sizeof(T)) == Errc::ok);
  CHECK(cells[0] == T(1));  // neighbours untouched (WIN-36)
  CHECK(cells[2] == T(2));
  CHECK(result == target);
  if (former) *former = result;
  return cells[1];
}

TEST_CASE_TEMPLATE("arithmetic and relations by type", T, std::int8_t, std::uint8_t, std::int16_t,
                   std::uint16_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, float, double) {
  const T low = std::numeric_limits<T>::lowest(), big = std::numeric_limits<T>::max();
  CHECK(run<T>(AtomicOp::min, big, low, 0) == low);
  CHECK(run<T>(AtomicOp::max, low, big, 0) == big);
  CHECK(run<T>(AtomicOp::sum, 5, 7, 0) == T(12));
  CHECK(run<T>(AtomicOp::prod, 5, 7, 0) == T(35));
  CHECK(run<T>(AtomicOp::land, 5, 0, 0) == T(0));
  CHECK(run<T>(AtomicOp::lor, 5, 0, 0) == T(1));
  CHECK(run<T>(AtomicOp::lxor, 5, 7, 0) == T(0));
  CHECK(run<T>(AtomicOp::atomic_write, 5, 7, 0) == T(7));
  CHECK(run<T>(AtomicOp::atomic_read, 5, 7, 0) == T(5));
  CHECK(run<T>(AtomicOp::cswap, 5, 7, 5) == T(7));
  CHECK(run<T>(AtomicOp::cswap, 5, 7, 6) == T(5));
  CHECK(run<T>(AtomicOp::cswap_ne, 5, 7, 6) == T(7));
  CHECK(run<T>(AtomicOp::cswap_le, 5, 7, 5) == T(7));
  CHECK(run<T>(AtomicOp::cswap_lt, 5, 7, 5) == T(5));
  CHECK(run<T>(AtomicOp::cswap_ge, 5, 7, 4) == T(5));
  CHECK(run<T>(AtomicOp::cswap_gt, 5, 7, 6) == T(7));
  if constexpr (std::is_integral_v<T>) {
    CHECK(run<T>(AtomicOp::band, 6, 3, 0) == T(2));
    CHECK(run<T>(AtomicOp::bor, 6, 3, 0) == T(7));
    CHECK(run<T>(AtomicOp::bxor, 6, 3, 0) == T(5));
    CHECK(run<T>(AtomicOp::mswap, 0x55, 0x2a, 0x0f) == T(0x5a));
    CHECK(run<T>(AtomicOp::sum, big, 1, 0) == low);  // wraps
    CHECK(run<T>(AtomicOp::prod, big, 2, 0) ==
          static_cast<T>(static_cast<std::make_unsigned_t<T>>(big) * 2u));
  } else {
    CHECK_FALSE(atomic_supported(AtomicOp::bxor, type_of<T>()));
  }
}

TEST_CASE("misaligned targets and unknown operations touch nothing") {
  alignas(8) std::byte cells[16]{};
  const std::byte operand[8]{std::byte{1}};
  CHECK(apply_atomic({AtomicOp::sum, DataType::u64, operand}, cells + 1, 8) == Errc::invalid);
  CHECK(apply_atomic({AtomicOp::sum, DataType::u64, operand}, cells, 7) == Errc::invalid);
  CHECK(apply_atomic({AtomicOp::cswap, DataType::u64, operand}, cells, 8) == Errc::invalid);
  CHECK(apply_atomic({static_cast<AtomicOp>(99), DataType::u64, operand}, cells, 8) == Errc::not_supported);
  CHECK(apply_atomic({AtomicOp::sum, static_cast<DataType>(10), operand}, cells, 8) == Errc::not_supported);
  for (const std::byte cell : cells) CHECK(cell == std::byte{0});
}

TEST_CASE("sums from several threads are exact, integers and floats") {
  alignas(8) double floating[4]{};
  alignas(8) std::uint16_t small[4]{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const double one[4] = {1, 1, 1, 1};
      const std::uint16_t ones[4] = {1, 1, 1, 1};
      for (int i = 0; i < 10000; ++i) {
        apply_atomic({AtomicOp::sum, DataType::f64, reinterpret_cast<const std::byte*>(one)},
                     reinterpret_cast<std::byte*>(floating), sizeof floating);
        apply_atomic({AtomicOp::sum, DataType::u16, reinterpret_cast<const std::byte*>(ones)},
                     reinterpret_cast<std::byte*>(small), sizeof small);
      }
    });
  for (auto& thread : threads) thread.join();
  for (const double value : floating) CHECK(value == 40000);
  for (const std::uint16_t value : small) CHECK(value == 40000);
}

using Words = std::vector<std::uint64_t>;

std::byte* bytes_of(Words& words) { return reinterpret_cast<std::byte*>(words.data()); }

// An atomic on as many words as `operand` has.
struct Update {
  Words operand, compare, result;
  Transfer transfer{};

  Update(OpCode code, AtomicOp op, std::size_t count)
      : operand(count, 1), compare(count, 5), result(count, 99) {
    transfer.op = code;
    transfer.atomic = op;
    transfer.type = DataType::u64;
    transfer.length = count * sizeof(std::uint64_t);
    transfer.local = bytes_of(operand);
    transfer.compare = bytes_of(compare);
    transfer.result = bytes_of(result);
  }
};

bool all(const Words& words, std::uint64_t value) {
  return std::ranges::all_of(words, [=](std::uint64_t word) { return word == value; });
}

constexpr std::size_t kCounts[] = {1, 32, 33, 2048};  // words of an update; 32 are copied at once

TEST_CASE("an atomic of a transfer updates all words, from one buffer or from pieces") {
  for (const std::size_t count : kCounts) {
    CAPTURE(count);
    Words target(count, 5);
    bool modified = false;
    Update sum(OpCode::fetch_atomic, AtomicOp::sum, count);
    CHECK(apply_atomic(sum.transfer, bytes_of(target), &modified) == Errc::ok);
    CHECK((all(target, 6) && all(sum.result, 5) && modified));
    const std::size_t first = (count / 2) * sizeof(std::uint64_t);
    const std::array<iovec, 2> pieces = {iovec{bytes_of(sum.operand), first},
                                         iovec{bytes_of(sum.operand) + first, sum.transfer.length - first}};
    sum.transfer.local_pieces = pieces.data();
    sum.transfer.piece_count = pieces.size();
    CHECK(apply_atomic(sum.transfer, bytes_of(target), &modified) == Errc::ok);
    CHECK((all(target, 7) && all(sum.result, 6)));
    Update swap(OpCode::compare_atomic, AtomicOp::cswap, count);
    CHECK(apply_atomic(swap.transfer, bytes_of(target), &modified) == Errc::ok);
    CHECK((all(target, 7) && all(swap.result, 7)));
    std::ranges::fill(swap.compare, 7);
    CHECK(apply_atomic(swap.transfer, bytes_of(target), &modified) == Errc::ok);
    CHECK(all(target, 1));
    Update read(OpCode::fetch_atomic, AtomicOp::atomic_read, count);
    read.transfer.local = nullptr;
    CHECK(apply_atomic(read.transfer, bytes_of(target), &modified) == Errc::ok);
    CHECK(all(read.result, 1));
    read.transfer.length -= 1;
    CHECK(apply_atomic(read.transfer, bytes_of(target), &modified) == Errc::invalid);
  }
}

TEST_CASE("an atomic whose operands are gone changes nothing") {
  arm_fault_guard();
  void* const hole = ::mmap(nullptr, 4 * page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  auto* const gone = static_cast<std::byte*>(hole);
  for (const std::size_t count : kCounts) {
    CAPTURE(count);
    Words target(count, 5);
    bool modified = false;
    for (std::byte* Transfer::* const part : {&Transfer::local, &Transfer::result}) {
      Update update(OpCode::compare_atomic, AtomicOp::cswap, count);
      update.transfer.*part = gone;
      CHECK(apply_atomic(update.transfer, bytes_of(target), &modified) == Errc::bounds);
      const bool is_result = part == &Transfer::result;
      CHECK((all(target, 5) || (is_result && count <= 32)));  // one step is done before its result is stored
      std::ranges::fill(target, 5);
    }
    Update update(OpCode::compare_atomic, AtomicOp::cswap, count);
    update.transfer.compare = gone;
    CHECK(apply_atomic(update.transfer, bytes_of(target), &modified) == Errc::bounds);
    CHECK(all(target, 5));
  }
  ::munmap(hole, 4 * page_size());
}

}  // namespace
}  // namespace fab
