#pragma once

#include <atomic>
#include <utility>

namespace fab::fi {

// How many objects use one that must not close before them.
using Users = std::atomic<int>;

// Counts as a user of an object for its lifetime.
class Use final {
 public:
  Use() noexcept = default;
  explicit Use(Users& users) noexcept : users_(&users) { users.fetch_add(1, std::memory_order_relaxed); }
  Use(Use&& other) noexcept : users_(std::exchange(other.users_, nullptr)) {}
  Use& operator=(Use&& other) noexcept {
    std::swap(users_, other.users_);
    return *this;
  }
  ~Use() {
    if (users_) users_->fetch_sub(1, std::memory_order_release);
  }

 private:
  Users* users_ = nullptr;
};

inline bool in_use(const Users& users) noexcept { return users.load(std::memory_order_acquire) != 0; }

}  // namespace fab::fi
