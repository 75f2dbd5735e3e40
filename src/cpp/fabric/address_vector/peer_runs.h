#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "fabric/address_vector/peer_memory.h"
#include "fabric/types/peer_id.h"
#include "fabric/types/types.h"

namespace fab {

// Consecutive socket addresses (FI_SYMMETRIC): all ports of one node, then those of the next node. A run is a
// few words, however many addresses it holds. Writers hold the memory's lock; readers need none.
class PeerRuns {
 public:
  explicit PeerRuns(PeerMemory& memory) noexcept : memory_(memory) {}

  // Whether `address` continues a run that ends before `index`, or starts a new run. If so, the index belongs
  // to that run.
  bool append(std::uint64_t index, std::string_view address, std::uint32_t generation);
  // Generation of the run that holds the index; 0: none does.
  std::uint32_t generation(std::uint64_t index) const noexcept;
  // How many indices of [from, to) runs hold, and 1 + the highest index that any holds.
  std::uint64_t held(std::uint64_t from, std::uint64_t to) const noexcept;
  std::uint64_t end() const noexcept;
  using Packed = std::array<char, 32>;
  // Length of the address; 0: no run holds the index.
  std::size_t address(std::uint64_t index, Packed& out) const noexcept;
  // Index of an address in a run, for each run that holds it.
  template <class Visit>
  void visit(std::string_view address, Visit&& visit) const {
    for (std::uint32_t i = 0; i < count(); ++i)
      if (const auto index = index_of(memory_.header().run[i], address)) visit(*index);
  }

 private:
  std::uint32_t count() const noexcept {
    return std::min<std::uint32_t>(memory_.header().runs.load(std::memory_order_acquire), kMaxRuns);
  }
  static std::uint64_t end_of(const PeerRun& run) noexcept;
  const PeerRun* run_of(std::uint64_t index) const noexcept;
  static std::size_t base(const PeerRun& run, Packed& out) noexcept;
  // The address `nodes` and `ports` behind the first one of the run; 0: there is none.
  static std::size_t at(const PeerRun& run, std::uint64_t nodes, std::uint64_t ports, Packed& out) noexcept;
  static std::optional<std::uint64_t> index_of(const PeerRun& run, std::string_view address);

  PeerMemory& memory_;
};

}  // namespace fab
