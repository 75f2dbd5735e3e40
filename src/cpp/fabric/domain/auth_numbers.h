#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/locks/mutex.h"

namespace fab {

// The numbers by which region tables and requesters name the authorization keys of a domain: 0 is the
// domain's own key, and others count from 1 in the order in which they came. While a key is being replaced,
// several keys have its number, and regions need not know which of them a peer has. Safe from any thread.
class AuthNumbers final {
 public:
  explicit AuthNumbers(std::string own) : keys_{{std::move(own)}} {}

  std::uint32_t of(const std::string& auth_key);
  // RegionEntry::auth of a region for whoever has one of the keys; the domain's if there are none. Throws
  // Error(too_big) for several keys of which one has too great a number.
  std::uint32_t of_any(std::span<const std::string> auth_keys);
  // The keys of that number. This side shows the first one.
  std::vector<std::string> keys(std::uint32_t number) const;

  // --- while nobody else changes them
  struct Added {
    std::uint32_t number;
    bool is_new;
  };
  // From now on `key` has the number of `former`, too, which may be empty for the domain's key. It may have
  // it already. Throws Error(invalid), and nothing has changed then.
  Added add(const std::string& key, const std::string& former);
  // The last key that was added to that number has none any more.
  void take_back(std::uint32_t number) noexcept;
  // Throws Error(invalid) where it has none.
  std::uint32_t number_of_known(const std::string& key) const;
  void set(std::uint32_t number, std::vector<std::string> keys) noexcept;

 private:
  std::uint32_t find(const std::string& key) const noexcept
      FAB_REQUIRES(mutex_);  // keys_.size(): it has none
  std::uint32_t known(const std::string& key) const FAB_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::vector<std::string>> keys_ FAB_GUARDED_BY(mutex_);  // by number
};

}  // namespace fab
