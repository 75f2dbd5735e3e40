#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fab {

#ifdef __SANITIZE_THREAD__
// The thread sanitizer has a lock of its own during an atomic store. A fault there would leave it locked.
[[gnu::no_sanitize("thread"), gnu::noinline]] inline void touch(const std::byte* at) noexcept {
  static_cast<void>(*static_cast<const volatile std::byte*>(at));
}
#else
inline void touch(const std::byte*) noexcept {}
#endif

// Copies one element: in one access where both ends are aligned, and in order with the copies before it.
template <class T>
inline void copy_element(std::byte* to, const std::byte* from) noexcept {
  const auto aligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % sizeof(T) == 0; };
  T value;
  if (aligned(from))
    value = __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  else
    std::memcpy(&value, from, sizeof value);
  touch(to);
  if (aligned(to))
    __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  else
    std::memcpy(to, &value, sizeof value);
}

// Copies kSize to 2 * kSize bytes without a loop.
template <std::size_t kSize>
inline void copy_both_ends(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  std::byte head[kSize], tail[kSize];
  std::memcpy(head, from, kSize);
  std::memcpy(tail, from + size - kSize, kSize);
  std::memcpy(to, head, kSize);
  std::memcpy(to + size - kSize, tail, kSize);
}

// Copies from and to registered memory, which others may use at the same time: the one way in which the CPU
// touches it for the library, apart from atomics. Scalars go in one access, so that nobody sees half of one;
// small sizes need no call.
inline void copy_memory(void* target, const void* source, std::size_t size) noexcept {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  if (size == 8) return copy_element<std::uint64_t>(to, from);
  if (size > 64) {
    std::memcpy(to, from, size);
    return;
  }
  if (size > 32) return copy_both_ends<32>(to, from, size);
  if (size > 16) return copy_both_ends<16>(to, from, size);
  if (size > 8) return copy_both_ends<8>(to, from, size);
  if (size == 4) return copy_element<std::uint32_t>(to, from);
  if (size > 4) return copy_both_ends<4>(to, from, size);
  if (size == 2) return copy_element<std::uint16_t>(to, from);
  if (size == 3) return copy_both_ends<2>(to, from, size);
  if (size == 1) copy_element<std::uint8_t>(to, from);
}

// Prefetches the beginning of what is copied next. The processor then goes on by itself.
inline void prefetch_memory(const void* source, std::size_t size) noexcept {
  constexpr std::size_t kLine = 64, kLines = 16;
  const auto* from = static_cast<const std::byte*>(source);
  for (std::size_t at = 0; at < std::min(size, kLines * kLine); at += kLine) __builtin_prefetch(from + at);
}

// Copies one part of memory that is larger than the caches: stores that bypass them save reading what is
// overwritten.
inline void copy_streaming(void* target, const void* source, std::size_t size) noexcept {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64, kAhead = 16 * kLine;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  const std::size_t head = std::min(size, -reinterpret_cast<std::uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  for (to += head, from += head, size -= head; size >= kLine; to += kLine, from += kLine, size -= kLine) {
    __builtin_prefetch(from + kAhead);
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // orders these stores before later ones, as ordinary stores are
  std::memcpy(to, from, size);
#else
  std::memcpy(target, source, size);
#endif
}

}  // namespace fab
