#pragma once

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
  // Stands on a node; nodes that it has passed may be erased.
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

}  // namespace fab
