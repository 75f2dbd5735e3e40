#pragma once

#include <memory>
#include <utility>

namespace fab::verbs {

// What is destroyed after the present turn, because it may still be running. The objects link each other, so
// that ending takes no memory.
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
  // Also what is added on the way. Each is destroyed before the next one: a chain that destroyed itself would
  // do so by recursion.
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
