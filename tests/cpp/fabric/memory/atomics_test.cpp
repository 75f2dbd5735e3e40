#include "fabric/memory/atomics.h"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace fab
