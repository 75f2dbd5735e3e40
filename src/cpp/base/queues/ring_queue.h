#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace fab {

// A first-in, first-out queue over a circular array, which grows by doubling and is reused: it does not
// allocate for each element. References stay valid until the next push_back() or reserve().
template <class T>
class RingQueue {
 public:
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  T& operator[](std::size_t i) noexcept { return slots_[(head_ + i) & (capacity_ - 1)]; }
  const T& operator[](std::size_t i) const noexcept { return slots_[(head_ + i) & (capacity_ - 1)]; }
  T& front() noexcept { return (*this)[0]; }
  const T& front() const noexcept { return (*this)[0]; }
  T& back() noexcept { return (*this)[count_ - 1]; }

  // Makes room for `size` elements, up to which push_back() does not throw. Throws std::bad_alloc, and then
  // has changed nothing.
  void reserve(std::size_t size) {
    while (capacity_ < size) grow();
  }
  // Adds an element, which is T{} or whatever drop_front() left in its place.
  T& push_back() {
    if (count_ == capacity_) grow();
    return (*this)[count_++];
  }
  T& push_back(T value) { return push_back() = std::move(value); }
  void pop_front() noexcept {
    front() = T{};
    drop_front();
  }
  void drop_front() noexcept {
    head_ = (head_ + 1) & (capacity_ - 1);
    --count_;
  }
  void pop_back() noexcept {
    back() = T{};
    --count_;
  }
  void clear() noexcept {
    while (count_) pop_front();
  }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 16 : capacity_ * 2);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    capacity_ = slots_.size();
    head_ = 0;
  }
  std::vector<T> slots_;      // a power of two, or none
  std::size_t capacity_ = 0;  // slots_.size(), which a vector finds by a division
  std::size_t head_ = 0, count_ = 0;
};

}  // namespace fab
