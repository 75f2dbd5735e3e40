#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "simulation/nodes/node.h"

// What nodes show to each other, and what has to be in it.
namespace fab::sim {

// The user's own bytes, which the library must not touch.
inline constexpr std::byte kPoison{0xDB};

// Memory with guards on both sides.
class Ground {
 public:
  explicit Ground(std::size_t size, std::byte fill = std::byte{0})
      : bytes_(size + 2 * kGuard, fill), size_(size) {
    std::memset(bytes_.data(), static_cast<int>(kPoison), kGuard);
    std::memset(data() + size, static_cast<int>(kPoison), kGuard);
  }
  std::byte* data() noexcept { return bytes_.data() + kGuard; }
  std::size_t size() const noexcept { return size_; }
  iovec piece() noexcept { return {data(), size_}; }
  // The user has it to himself from now on.
  void poison() noexcept { std::memset(data(), static_cast<int>(kPoison), size_); }
  bool poisoned() const noexcept { return all_poison(0, bytes_.size()); }
  bool guarded() const noexcept { return all_poison(0, kGuard) && all_poison(kGuard + size_, bytes_.size()); }

 private:
  static constexpr std::size_t kGuard = 64;
  bool all_poison(std::size_t from, std::size_t to) const noexcept {
    return from == to ||
           (bytes_[from] == kPoison && std::memcmp(&bytes_[from], &bytes_[from] + 1, to - from - 1) == 0);
  }
  std::vector<std::byte> bytes_;
  std::size_t size_;
};

// Cuts this memory into up to eight pieces, in any order. Together they are all of it.
std::vector<iovec> cut_up(Random& random, iovec whole);
// Copies bytes to pieces that hold as many.
void scatter(const std::vector<std::byte>& bytes, const std::vector<iovec>& pieces) noexcept;
// So many bytes of the ground, after the first `from`, in the order of its pieces; without pieces it is one.
std::vector<std::byte> gathered(Ground& ground, const std::vector<iovec>& pieces, std::size_t from,
                                std::size_t length);

// A part of a region that one initiator writes, one put after the other. A put that failed may have been done
// in part: then each byte is what it was before, or what the put would have made of it.
class Cell {
 public:
  Cell(std::size_t at, std::size_t size) : offset(at), bytes_(size) {}
  std::size_t size() const noexcept { return bytes_.size(); }
  void stored(std::size_t at, const std::vector<std::byte>& what);
  void maybe_stored(std::size_t at, const std::vector<std::byte>& what);
  bool may_hold(std::size_t at, const std::byte* what, std::size_t length) const noexcept;

  const std::size_t offset;  // in its region
  bool busy = false;         // an operation is under way

 private:
  struct Possible {
    std::size_t at;
    std::vector<std::byte> bytes;
    std::vector<char> valid;  // of each byte, whether nothing is sure to have been stored over it since
  };
  std::vector<std::byte> bytes_;
  std::vector<Possible> possible_;
};

// A region for one initiator alone.
struct Field {
  Field(std::size_t count, std::size_t size, std::uint64_t name) : ground(count * size), key(name) {
    for (std::size_t i = 0; i < count; ++i) cells.emplace_back(i * size, size);
  }
  Ground ground;
  const std::uint64_t key;
  std::vector<Cell> cells;
  std::uint32_t region = 0;
  std::uint32_t counter = 0;
  std::uint64_t stored = 0, tried = 0;  // puts that are sure to have counted, and that may have
};

// What a target shows to one initiator.
struct Share {
  Field small, medium;
  std::unique_ptr<Field> large{};  // once it is needed; this one and medium can be made durable
  // A region that is closed at some time, and whose memory is the target's own from then on.
  Ground passing{50'000};
  std::uint64_t passing_key = 0;
  std::uint32_t passing_region = 0;
  bool closed = false;
};

// What a process shows to all.
struct Home {
  static constexpr std::size_t kElements = 5;  // the last one is for compare-and-swap
  Home(Story& story, Node& node);
  std::int64_t& element(std::size_t i) noexcept { return reinterpret_cast<std::int64_t*>(numbers.data())[i]; }

  Node* node;  // null: it has ended
  Ground numbers{kElements * sizeof(std::int64_t)};
  Ground read_only{1024, std::byte{0x5A}}, write_only{1024, std::byte{0x5B}};
  std::uint64_t numbers_key, read_only_key, write_only_key;
  std::map<std::pair<unsigned, unsigned>, std::unique_ptr<Share>> shares;  // by number and incarnation
  std::uint32_t counters = 0;                                              // of its segment that are taken
  Share& share_for(Story& story, unsigned number, unsigned incarnation);
  Field& large_of(Story& story, Share& share);

  struct Element {
    std::uint64_t done = 0, tried = 0;
    std::vector<std::int64_t> formers{};
  };
  Element sums[kElements - 1];
};

}  // namespace fab::sim
