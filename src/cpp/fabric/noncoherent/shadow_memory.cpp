#include "fabric/noncoherent/shadow_memory.h"

#include <cstring>

#include "base/memory/fault_guard.h"

namespace fab {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t address_of(const std::byte* at) noexcept { return reinterpret_cast<std::uint64_t>(at); }

// Calls `use(offset, length)` for each page that bytes [start, end) of `memory` touch. A page that is not
// mapped is skipped: nobody but the user can say when it comes.
template <class Use>
void each_page(const std::byte* memory, std::uint64_t start, std::uint64_t end, Use use) noexcept {
  while (start < end) {
    const std::uint64_t length = std::min(end - start, kPage - address_of(memory + start) % kPage);
    guarded([&] { use(start, length); });
    start += length;
  }
}

}  // namespace

ShadowMemory::ShadowMemory(std::span<const iovec> cpu, bool mappable) {
  arm_fault_guard();
  std::uint64_t size = 0;
  for (const iovec& buffer : cpu) {
    auto* const memory = static_cast<std::byte*>(buffer.iov_base);
    size = (size + kPage - 1) / kPage * kPage + address_of(memory) % kPage + buffer.iov_len;
  }
  size = (size + page_size() - 1) / page_size() * page_size();
  if (mappable) {
    file_ = make_memory_file("pyfab-device-view", size);
    device_memory_ = Mapping::shared(file_.get(), 0, size);
  } else {
    device_memory_ = Mapping::anonymous(size);
  }
  agreed_memory_ = Mapping::anonymous(size);

  std::uint64_t place = 0, offset = 0;
  for (const iovec& piece : cpu) {
    auto* const memory = static_cast<std::byte*>(piece.iov_base);
    place = (place + kPage - 1) / kPage * kPage + address_of(memory) % kPage;
    const Buffer buffer{.cpu = memory,
                        .device = device_memory_.data() + place,
                        .agreed = agreed_memory_.data() + place,
                        .offset = offset,
                        .length = piece.iov_len};
    each_page(memory, 0, buffer.length, [&](std::uint64_t at, std::uint64_t length) {
      if (std::memcmp(buffer.agreed + at, memory + at, length) == 0) return;  // zeros take no memory here
      std::memcpy(buffer.agreed + at, memory + at, length);
      std::memcpy(buffer.device + at, buffer.agreed + at, length);
    });
    buffers_.push_back(buffer);
    device_.push_back({buffer.device, piece.iov_len});
    place += piece.iov_len;
    offset += piece.iov_len;
  }
}

std::uint64_t ShadowMemory::file_offset() const noexcept {
  return static_cast<std::uint64_t>(buffers_.front().device - device_memory_.data());
}

Extent ShadowMemory::locate(const Triplet& segment) const noexcept {
  for (const Buffer& buffer : buffers_) {
    const std::uint64_t at = segment.virtual_address - address_of(buffer.cpu);
    if (at < buffer.length) return {buffer.offset + at, buffer.offset + at + segment.segment_length};
  }
  return {};
}

// Calls `use(buffer, part)` for the buffers that `range` runs through, `part` being within the buffer.
template <class Use>
void ShadowMemory::each_part(Extent range, Use use) const noexcept {
  for (const Buffer& buffer : buffers_) {
    const Extent part{std::max(range.start, buffer.offset),
                      std::min(range.end, buffer.offset + buffer.length)};
    if (part.start < part.end) use(buffer, Extent{part.start - buffer.offset, part.end - buffer.offset});
  }
}

ShadowMemory::Effect ShadowMemory::synchronise(SyncSide side, Extent range, std::uint32_t line) noexcept {
  Effect effect;
  each_part(range, [&](const Buffer& buffer, Extent part) {
    each_page(buffer.cpu, part.start, part.end, [&](std::uint64_t start, std::uint64_t length) {
      std::byte* const agreed = buffer.agreed + start;
      if (std::memcmp(buffer.cpu + start, agreed, length) == 0 &&
          std::memcmp(buffer.device + start, agreed, length) == 0)
        return;
      // Compares copies, because peers may change the bytes between the comparison and its use.
      std::byte cpu[kPage], device[kPage];
      std::memcpy(cpu, buffer.cpu + start, length);
      std::memcpy(device, buffer.device + start, length);
      for (std::uint64_t i = 0; i < length; ++i) {
        const bool stored = cpu[i] != agreed[i], put = device[i] != agreed[i];
        if (stored && put) {
          const std::uint64_t at = buffer.offset + start + i;
          effect.conflict.include({at, at + 1});
        }
        if (put && side == SyncSide::write) {
          agreed[i] = buffer.cpu[start + i] = device[i];
          ++effect.to_cpu;
        } else if (stored) {
          buffer.device[start + i] = agreed[i] = cpu[i];
          ++effect.to_device;
        }
      }
    });
    if (line == 1) return;
    const auto whole = [&](std::uint64_t at) { return (address_of(buffer.cpu) + at) / line * line; };
    const std::uint64_t first = std::max(whole(part.start), address_of(buffer.cpu));
    const std::uint64_t last = whole(part.end - 1) + line;
    overwrite(side, buffer, {first - address_of(buffer.cpu), part.start}, effect);
    overwrite(side, buffer, {part.end, std::min(last - address_of(buffer.cpu), buffer.length)}, effect);
  });
  return effect;
}

void ShadowMemory::overwrite(SyncSide side, const Buffer& buffer, Extent part, Effect& effect) noexcept {
  const bool read = side == SyncSide::read;
  const std::byte* const from = read ? buffer.cpu : buffer.device;
  std::byte* const to = read ? buffer.device : buffer.cpu;
  guarded([&] {
    for (std::uint64_t at = part.start; at < part.end; ++at) {
      const std::byte value = from[at];
      if (to[at] != value) {  // memory that is only read may be read-only
        to[at] = value;
        ++(read ? effect.to_device : effect.to_cpu);
      }
      buffer.agreed[at] = value;
    }
  });
}

Extent ShadowMemory::stored(Extent range) const noexcept {
  Extent found;
  each_part(range, [&](const Buffer& buffer, Extent part) {
    each_page(buffer.cpu, part.start, part.end, [&](std::uint64_t start, std::uint64_t length) {
      const std::byte* const cpu = buffer.cpu + start;
      const std::byte* const agreed = buffer.agreed + start;
      if (std::memcmp(cpu, agreed, length) == 0) return;
      for (std::uint64_t i = 0; i < length; ++i)
        if (cpu[i] != agreed[i]) {
          const std::uint64_t at = buffer.offset + start + i;
          found.include({at, at + 1});
        }
    });
  });
  return found;
}

}  // namespace fab
