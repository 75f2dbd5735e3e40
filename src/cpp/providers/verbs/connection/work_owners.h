#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace fab::verbs {

class ConnectionOwner;

// Whose work requests complete: each owner has a number, which the ids of its requests hold. The device may
// tell of requests whose owner is gone.
class WorkOwners {
 public:
  explicit WorkOwners(std::uint32_t first_number = 1) noexcept : next_number_(first_number) {}

  // Its number, which is not 0.
  std::uint32_t add(ConnectionOwner& owner) {
    while (next_number_ == 0 || owners_.contains(next_number_)) ++next_number_;
    owners_.emplace(next_number_, &owner);
    return next_number_++;
  }
  void remove(std::uint32_t number) noexcept {
    owners_.erase(number);
    recent_ = {};
  }
  // Null: gone.
  ConnectionOwner* find(std::uint32_t number) noexcept {
    if (number != recent_.first) {
      const auto found = owners_.find(number);
      if (found == owners_.end()) return nullptr;
      recent_ = *found;
    }
    return recent_.second;
  }

 private:
  std::unordered_map<std::uint32_t, ConnectionOwner*> owners_;
  std::pair<std::uint32_t, ConnectionOwner*> recent_{};  // the owner that was looked up last
  std::uint32_t next_number_;
};

}  // namespace fab::verbs
