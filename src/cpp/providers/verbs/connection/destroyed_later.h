#pragma once

#include <memory>
#include <utility>

namespace fab::verbs {

// An object that is destroyed after the present turn, because its code may still be running. The objects form
// a list by themselves, so that adding one allocates nothing.
struct DestroyedLater {
  virtual ~DestroyedLater() = default;
  std::shared_ptr<DestroyedLater> next{};
};

class DestroyedLaterList {
 public:
  DestroyedLaterList() noexcept = default;
  DestroyedLaterList(DestroyedLaterList&&) noexcept = default;
  ~DestroyedLaterList() { destroy(); }

  bool empty() const noexcept { return !first_; }
  void add(std::shared_ptr<DestroyedLater> dead) noexcept {
    if (!dead) return;
    dead->next = std::move(first_);
    first_ = std::move(dead);
  }
  // Destroys all, even those that are added meanwhile. It cuts each off the list first: a list that destroyed
  // itself would do so by recursion.
  void destroy() noexcept {
    while (first_) {
      std::shared_ptr<DestroyedLater> dead = std::move(first_);
      first_ = std::move(dead->next);
    }
  }

 private:
  std::shared_ptr<DestroyedLater> first_;
};

}  // namespace fab::verbs
