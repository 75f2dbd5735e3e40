#include "fabric/domain/auth_key_ring.h"

#include <algorithm>
#include <utility>

#include "base/crypto/stretched_key.h"
#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

// The key of that number, with the first of `keys` as the secret in use and the rest as others.
AuthKey auth_key_of(std::uint32_t number, std::span<const std::string> keys) {
  AuthKey key{.secret = stretched_key(keys.front()), .number = number};
  for (const std::string& other : keys.subspan(1)) key.others.push_back(stretched_key(other));
  return key;
}

void check_count(std::size_t secrets) {
  if (secrets > kMaxAuthKeys)
    throw Error(Errc::invalid, "an endpoint takes at most " + std::to_string(kMaxAuthKeys) +
                                   " authorization keys, and this would make " + std::to_string(secrets) +
                                   "; remove some, or open an address vector for some of them");
}

}  // namespace

std::size_t AuthKeyRing::own_keys() const {
  const auto keys = numbers_.keys(0);
  return keys.front().empty() ? 0 : keys.size();
}

AuthKeys AuthKeyRing::keys_of(const std::vector<Key>& asked) {
  AuthKeys keys;
  const auto under = [&](std::uint32_t number) {
    const auto found = std::ranges::find(keys, number, &AuthKey::number);
    return found != keys.end() ? found : keys.insert(found, auth_key_of(number, numbers_.keys(number)));
  };
  for (const auto& [key, auth] : asked) {
    const auto found = under(numbers_.of(key));
    if (auth != 0) found->handles.push_back(auth);
  }
  if (keys.empty()) under(0);
  check_count(count_secrets(keys));
  return keys;
}

std::shared_ptr<Context> AuthKeyRing::open(const std::vector<Key>& keys, const Open& open) {
  const LockGuard lock(mutex_);
  return open(keys_of(keys));
}

// Throws Error(invalid) if a context that has the key of this number would have too many.
void AuthKeyRing::check_room(std::uint32_t number, std::size_t secrets) {
  contexts_.visit([&](const Context& context) {
    const AuthKeys& keys = context.handles().keys();
    const auto key = std::ranges::find(keys, number, &AuthKey::number);
    if (key != keys.end()) check_count(count_secrets(keys) - key->secrets() + secrets);
  });
}

// Tells the contexts that the key of this number has these keys now: all of them, or none if memory runs out.
void AuthKeyRing::tell(std::uint32_t number, std::span<const std::string> keys) {
  std::size_t count = 0;  // contexts may close meanwhile, and none opens
  contexts_.visit([&](const Context&) { ++count; });
  std::vector<AuthKey> copies(count, auth_key_of(number, keys));
  contexts_.visit([&](Context& context) {
    if (copies.empty() || !context.swap_secrets(copies.back())) return;
    copies.pop_back();
    set_auth_keys(segment_, context.slot(), context.handles().keys());
  });
}

bool AuthKeyRing::add(const std::string& key, const std::string& former) {
  stretched_key(key);  // takes long, and is remembered
  const LockGuard lock(mutex_);
  const auto [number, is_new] = numbers_.add(key, former);
  if (!is_new) return false;
  try {
    const auto keys = numbers_.keys(number);
    check_room(number, keys.size());
    tell(number, keys);
  } catch (...) {
    numbers_.take_back(number);
    throw;
  }
  return true;
}

void AuthKeyRing::use(const std::string& key) {
  const LockGuard lock(mutex_);
  const std::uint32_t number = numbers_.number_of_known(key);
  auto keys = numbers_.keys(number);
  std::iter_swap(keys.begin(), std::ranges::find(keys, key));
  tell(number, keys);
  numbers_.set(number, std::move(keys));
}

void AuthKeyRing::remove(const std::string& key, bool end_streams) {
  {
    const LockGuard lock(mutex_);
    const std::uint32_t number = numbers_.number_of_known(key);
    auto keys = numbers_.keys(number);
    if (keys.front() == key)
      throw Error(Errc::invalid, "this authorization key is in use; add another one, and use that first");
    std::erase(keys, key);
    tell(number, keys);
    numbers_.set(number, std::move(keys));
  }
  if (!end_streams) return;
  contexts_.visit(
      [](Context& context) { context.locked([](Endpoint& endpoint) { endpoint.end_removed_keys(); }); });
}

}  // namespace fab
