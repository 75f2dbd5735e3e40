#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "fabric/address_vector/peer_memory.h"
#include "fabric/types/peer_id.h"

namespace fab {

// Vacant indices below PeerHeader::used: a bitmap with two summaries above it, so that the lowest vacant
// index is found in a few steps, however many there are. For writers, who hold the memory's lock.
class PeerVacancies {
 public:
  explicit PeerVacancies(PeerMemory& memory)
      : memory_(memory), bits_(memory), words_(memory), blocks_(memory) {}

  void add(std::uint64_t index) {
    set(bits_, index);
    set(words_, index >> 6);
    set(blocks_, index >> 12);
    auto& lowest = memory_.header().lowest;
    if (index >> 18 < lowest.load(std::memory_order_relaxed))
      lowest.store(index >> 18, std::memory_order_relaxed);
  }
  std::optional<std::uint64_t> lowest() {
    const std::uint64_t used = memory_.header().used.load(std::memory_order_relaxed);
    const std::uint64_t end = (std::min(used, kMaxPeers) >> 18) + 1;
    auto& lowest = memory_.header().lowest;
    for (std::uint64_t at = lowest.load(std::memory_order_relaxed); at < end; ++at) {
      lowest.store(at, std::memory_order_relaxed);
      const auto block = first(blocks_, at);
      const auto word = block ? first(words_, *block) : std::nullopt;
      if (const auto index = word ? first(bits_, *word) : std::nullopt) return index;
    }
    return {};
  }
  void take(std::uint64_t index) {
    if (clear(bits_, index) && clear(words_, index >> 6)) clear(blocks_, index >> 12);
  }
  void forget_all() noexcept {
    zero(bits_);
    zero(words_);
    zero(blocks_);
    memory_.header().lowest.store(0, std::memory_order_relaxed);
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  template <class Column>
  static void set(Column& column, std::uint64_t bit) {
    column.make(bit >> 6).fetch_or(std::uint64_t{1} << (bit & 63), std::memory_order_relaxed);
  }
  template <class Column>
  static bool clear(Column& column, std::uint64_t bit) {  // true if the word is empty now
    const std::uint64_t mask = std::uint64_t{1} << (bit & 63);
    Word* word = column.find(bit >> 6);
    return !word || (word->fetch_and(~mask, std::memory_order_relaxed) & ~mask) == 0;
  }
  template <class Column>
  static std::optional<std::uint64_t> first(const Column& column, std::uint64_t word) {
    const Word* found = column.find(word);
    const std::uint64_t bits = found ? found->load(std::memory_order_relaxed) : 0;
    return bits ? std::optional(word * 64 + static_cast<unsigned>(std::countr_zero(bits))) : std::nullopt;
  }
  template <class Column>
  static void zero(Column& column) noexcept {
    const std::uint64_t room = column.room();
    for (std::uint64_t word = 0; word < room; ++word)
      if (Word* found = column.find(word)) found->store(0, std::memory_order_relaxed);
  }

  PeerMemory& memory_;
  PeerColumn<Word, PeerSection::vacant0> bits_;
  PeerColumn<Word, PeerSection::vacant1> words_;
  PeerColumn<Word, PeerSection::vacant2> blocks_;
};

}  // namespace fab
