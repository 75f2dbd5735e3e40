#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fab {

// The numbers by which region tables and requesters name the authorization keys of a domain: 0 is the
// domain's own key, and others count from 1 in the order in which they came. Safe from any thread.
class AuthNumbers final {
 public:
  explicit AuthNumbers(std::string own) : own_(std::move(own)) {}

  std::uint32_t of(const std::string& auth_key);
  // RegionEntry::auth of a region for whoever has one of the keys; the domain's if there are none. Throws
  // Error(too_big) for several keys of which one has too great a number.
  std::uint32_t of_any(std::span<const std::string> auth_keys);

 private:
  const std::string own_;
  std::mutex mutex_;
  std::vector<std::string> others_;
};

}  // namespace fab
