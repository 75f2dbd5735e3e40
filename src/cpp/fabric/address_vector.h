#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabric/name.h"
#include "fabric/types.h"

namespace fab {

// A table of peers: handle (index) → encoded Name. Handles take the lowest free index (AV-11). Lookups take
// no lock; insertion and removal are serialised.
class AddressVector final {
 public:
  AddressVector();
  ~AddressVector();
  AddressVector(const AddressVector&) = delete;
  AddressVector& operator=(const AddressVector&) = delete;

  // Checks that `name` decodes (throws Error(invalid)) and stores it.
  PeerId insert(std::string name);
  void remove(PeerId peer);               // throws Error(invalid) for a handle that is not there
  std::string lookup(PeerId peer) const;  // likewise
  // Lowest handle of a name that holds `part`, or kNoPeer: who is it that calls from there?
  PeerId find(const Part& part) const;
  bool contains(PeerId peer) const noexcept { return generation(peer) != 0; }
  // Changes whenever the handle is given to another address; 0 while it is vacant.
  std::uint32_t generation(PeerId peer) const noexcept;
  std::size_t size() const noexcept { return live_.load(std::memory_order_relaxed); }
  std::uint64_t end() const noexcept {
    return used_.load(std::memory_order_acquire);
  }  // 1 + the highest index ever used

 private:
  struct Entry {
    std::atomic<std::uint32_t> generation{0};
    std::string name;  // guarded by mutex_
  };
  static constexpr unsigned kFirstChunkBits = 6, kChunks = 27;
  Entry* entry(std::uint64_t index) const noexcept;  // null beyond what was allocated
  Entry& allocate(std::uint64_t index);

  mutable std::mutex mutex_;
  std::array<std::atomic<Entry*>, kChunks> chunks_{};       // chunk i holds 64 << i entries; they never move
  std::vector<std::uint64_t> free_;                         // min-heap
  std::unordered_multimap<std::uint64_t, PeerId> by_part_;  // by hash of the part
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::size_t> live_{0};
  std::uint32_t next_generation_ = 1;
};

}  // namespace fab
