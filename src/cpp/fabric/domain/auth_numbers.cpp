#include "fabric/domain/auth_numbers.h"

#include <algorithm>

#include "base/locks/mutex.h"
#include "fabric/segment/region_table.h"
#include "fabric/types/error.h"

namespace fab {

std::uint32_t AuthNumbers::find(const std::string& key) const noexcept {
  const auto has = [&](const std::vector<std::string>& keys) {
    return std::ranges::find(keys, key) != keys.end();
  };
  return static_cast<std::uint32_t>(std::ranges::find_if(keys_, has) - keys_.begin());
}

std::uint32_t AuthNumbers::known(const std::string& key) const {
  const std::uint32_t number = find(key);
  if (key.empty() || number == keys_.size())
    throw Error(Errc::invalid,
                "the domain has no such authorization key; keys are told apart by all their bytes");
  return number;
}

std::uint32_t AuthNumbers::of(const std::string& auth_key) {
  if (auth_key.empty()) return 0;
  const LockGuard lock(mutex_);
  const std::uint32_t number = find(auth_key);
  if (number == keys_.size()) keys_.push_back({auth_key});
  return number;
}

std::vector<std::string> AuthNumbers::keys(std::uint32_t number) const {
  const LockGuard lock(mutex_);
  return keys_.at(number);
}

AuthNumbers::Added AuthNumbers::add(const std::string& key, const std::string& former) {
  const LockGuard lock(mutex_);
  const std::uint32_t number = former.empty() ? 0 : known(former);
  if (keys_[number].front().empty())
    throw Error(Errc::invalid, "the domain was opened without an authorization key, and asks for none");
  const std::uint32_t other = find(key);
  if (key.empty() || (other != keys_.size() && other != number))
    throw Error(Errc::invalid, "the domain has this authorization key already, for other peers");
  const bool is_new = other == keys_.size();
  if (is_new) keys_[number].push_back(key);
  return {number, is_new};
}

void AuthNumbers::take_back(std::uint32_t number) noexcept {
  const LockGuard lock(mutex_);
  keys_[number].pop_back();
}

std::uint32_t AuthNumbers::number_of_known(const std::string& key) const {
  const LockGuard lock(mutex_);
  return known(key);
}

void AuthNumbers::set(std::uint32_t number, std::vector<std::string> keys) noexcept {
  const LockGuard lock(mutex_);
  keys_[number] = std::move(keys);
}

std::uint32_t AuthNumbers::of_any(std::span<const std::string> auth_keys) {
  if (auth_keys.empty()) return 0;
  if (auth_keys.size() == 1) return of(auth_keys.front());
  std::uint32_t set = kAuthSet;
  for (const std::string& auth_key : auth_keys) {
    const std::uint32_t number = of(auth_key);
    if (number > kMostInAuthSet)
      throw Error(Errc::too_big, "regions for several authorization keys take the first " +
                                     std::to_string(kMostInAuthSet) +
                                     " that the domain has seen, and this is number " +
                                     std::to_string(number) + "; register the memory once for each key");
    set |= 1u << number;
  }
  return set;
}

}  // namespace fab
