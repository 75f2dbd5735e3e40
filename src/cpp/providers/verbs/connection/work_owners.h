#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace fab::verbs {

class ConnectionOwner;

// Finds the owner of a completed work request. Each owner has a number, which is part of the ids of its
// requests. The device may tell of requests whose owner is gone.
class WorkOwners {
 public:
  explicit WorkOwners(std::uint32_t first_number = 1) noexcept : next_number_(first_number) {}

  // Returns the owner's number, which is never 0.
  std::uint32_t add(ConnectionOwner& owner) {
    while (next_number_ == 0 || owners_.contains(next_number_)) ++next_number_;
    owners_.emplace(next_number_, &owner);
    return next_number_++;
  }
  void remove(std::uint32_t number) noexcept {
    owners_.erase(number);
    recent_ = {};
  }
  // Returns null if the owner is gone.
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
