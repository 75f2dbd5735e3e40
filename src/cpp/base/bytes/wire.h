#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/lifetime.h"

namespace fab {

// Integers on the wire and in encoded names are little-endian.
template <class T>
T to_little(T value) noexcept {
  if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) return value;
  T out;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    reinterpret_cast<unsigned char*>(&out)[i] = reinterpret_cast<unsigned char*>(&value)[sizeof(T) - 1 - i];
  return out;
}

class WireWriter {
 public:
  template <class T>
    requires std::is_integral_v<T>
  WireWriter& put(T value) {
    value = to_little(value);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  WireWriter& put_bytes(std::string_view bytes) {  // 32-bit length, then the bytes
    put(static_cast<std::uint32_t>(bytes.size()));
    bytes_.append(bytes);
    return *this;
  }
  WireWriter& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  std::string take() { return std::move(bytes_); }
  const std::string& bytes() const noexcept FAB_LIFETIME_BOUND { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what WireWriter wrote, from bytes that are not trusted: after a read past the end, ok() is false and
// every later read gives zero or an empty string.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) noexcept : rest_(bytes) {}
  template <class T>
    requires std::is_integral_v<T>
  T get() noexcept {
    T value{};
    if (rest_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return to_little(value);
  }
  std::string_view raw(std::size_t size) noexcept {
    if (rest_.size() < size) {
      fail();
      return {};
    }
    const auto bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  std::string_view get_bytes() noexcept { return raw(get<std::uint32_t>()); }
  bool ok() const noexcept { return ok_; }
  bool at_end() const noexcept { return ok_ && rest_.empty(); }

 private:
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace fab
