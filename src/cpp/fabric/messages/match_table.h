#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/queues/intrusive_list.h"

namespace fab {

// Nodes by hash; those of one hash stay in the order of insertion. The caller compares the nodes.
template <class T, ListLink<T> T::* link>
class MatchTable {
 public:
  using Chain = IntrusiveList<T, link>;

  // The nodes with this hash, and maybe others.
  const Chain& chain(std::uint64_t hash) const noexcept { return chains_[hash & (chains_.size() - 1)]; }
  // Makes room for one more node, so that the next insert() does not throw.
  void make_room() {
    if (size_ == chains_.size()) grow();
  }
  void insert(T& node) {
    make_room();
    chains_[node.hash & (chains_.size() - 1)].push_back(node);
    ++size_;
  }
  void erase(T& node) noexcept {
    chains_[node.hash & (chains_.size() - 1)].erase(node);
    --size_;
  }
  std::size_t size() const noexcept { return size_; }
  // Any node, or null.
  T* any() const noexcept {
    for (const Chain& chain : chains_)
      if (!chain.empty()) return chain.front();
    return nullptr;
  }

 private:
  void grow() {
    std::vector<Chain> larger(chains_.size() * 2);
    for (Chain& chain : chains_)
      while (T* node = chain.front()) {
        chain.erase(*node);
        larger[node->hash & (larger.size() - 1)].push_back(*node);
      }
    chains_ = std::move(larger);
  }

  std::vector<Chain> chains_ = std::vector<Chain>(16);  // a power of two
  std::size_t size_ = 0;
};

}  // namespace fab
