#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fab {

// A node's place in an IntrusiveList.
template <class T>
struct ListLink {
  T* previous = nullptr;
  T* next = nullptr;
};

// A doubly linked list of nodes that somebody else owns. A node may be in one list per link.
template <class T, ListLink<T> T::* link>
class IntrusiveList {
 public:
  // Stands on a node; the nodes it has passed may be erased.
  struct Iterator {
    T* node;
    T& operator*() const noexcept { return *node; }
    Iterator& operator++() noexcept {
      node = (node->*link).next;
      return *this;
    }
    bool operator==(const Iterator&) const noexcept = default;
  };

  Iterator begin() const noexcept { return {first_}; }
  Iterator end() const noexcept { return {nullptr}; }
  T* front() const noexcept { return first_; }
  bool empty() const noexcept { return first_ == nullptr; }
  void push_back(T& node) noexcept {
    (node.*link) = {last_, nullptr};
    (last_ ? (last_->*link).next : first_) = &node;
    last_ = &node;
  }
  void insert_after(T* before, T& node) noexcept {  // null: in front of all
    T* const after = before ? (before->*link).next : first_;
    (node.*link) = {before, after};
    (before ? (before->*link).next : first_) = &node;
    (after ? (after->*link).previous : last_) = &node;
  }
  void erase(T& node) noexcept {
    const ListLink<T> at = node.*link;
    (at.previous ? (at.previous->*link).next : first_) = at.next;
    (at.next ? (at.next->*link).previous : last_) = at.previous;
    (node.*link) = {};
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

// Nodes by hash; those of one hash stay in the order of insertion. Whoever looks compares the nodes itself.
template <class T, ListLink<T> T::* link>
class MatchTable {
 public:
  using Chain = IntrusiveList<T, link>;

  // The nodes of this hash, and maybe others.
  const Chain& chain(std::uint64_t hash) const noexcept { return chains_[hash & (chains_.size() - 1)]; }
  // For one more, so that the next insert() does not throw.
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
