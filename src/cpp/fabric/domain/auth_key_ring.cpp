#include "fabric/domain/auth_key_ring.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/crypto/stretched_key.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

// The key of that number with these keys as secrets, of which this side shows the first.
void set_secrets(AuthKey& key, std::span<const std::string> keys) {
  std::vector<std::string> others;
  for (const std::string& other : keys.subspan(1)) others.push_back(stretched_key(other));
  key.secret = stretched_key(keys.front());
  key.others = std::move(others);
}

}  // namespace

std::size_t AuthKeyRing::own_keys() const {
  const auto keys = numbers_.keys(0);
  return keys.front().empty() ? 0 : keys.size();
}

AuthKeys AuthKeyRing::keys_of(const std::vector<Key>& asked) {
  AuthKeys keys;
  const auto under = [&](std::uint32_t number) {
    auto found = std::ranges::find(keys, number, &AuthKey::number);
    if (found != keys.end()) return found;
    found = keys.insert(found, AuthKey{.number = number});
    set_secrets(*found, numbers_.keys(number));
    return found;
  };
  for (const auto& [secret, auth] : asked) {
    const auto found = under(numbers_.of(secret));
    if (auth != 0) found->handles.push_back(auth);
  }
  if (const std::size_t secrets = count_secrets(keys); secrets > kMaxAuthKeys)
    throw Error(Errc::invalid, "the address vector has " + std::to_string(secrets) +
                                   " authorization keys, and an endpoint takes at most " +
                                   std::to_string(kMaxAuthKeys) +
                                   "; open an address vector for some of them");
  if (keys.empty()) under(0);
  return keys;
}

std::shared_ptr<Context> AuthKeyRing::open(const std::vector<Key>& keys, const Open& open) {
  const std::lock_guard lock(mutex_);
  return open(keys_of(keys));
}

// Tells the contexts which secrets the key of this number has now.
void AuthKeyRing::tell(std::uint32_t number) {
  AuthKey now;
  set_secrets(now, numbers_.keys(number));
  contexts_.visit([&](Context& context) {
    const auto key = std::ranges::find(context.keys(), number, &AuthKey::number);
    if (key == context.keys().end()) return;
    AuthKey next = now;  // so that nothing under the lock needs memory
    context.locked([&](Endpoint&) {
      key->secret.swap(next.secret);
      key->others.swap(next.others);
    });
    set_auth_keys(segment_, context.slot(), context.keys());
  });
}

// Of the contexts that have the key of this number.
void AuthKeyRing::check_room(std::uint32_t number) {
  const std::size_t secrets = numbers_.keys(number).size();
  contexts_.visit([&](Context& context) {
    const AuthKeys& keys = context.keys();
    const auto key = std::ranges::find(keys, number, &AuthKey::number);
    if (key != keys.end() && count_secrets(keys) - key->secrets() + secrets > kMaxAuthKeys)
      throw Error(Errc::invalid, "an endpoint has " + std::to_string(kMaxAuthKeys) +
                                     " authorization keys, which is the most that one takes; remove one");
  });
}

void AuthKeyRing::add(const std::string& key, const std::string& former) {
  stretched_key(key);  // takes long, and is remembered
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = numbers_.add(key, former);
  try {
    check_room(number);
    tell(number);
  } catch (...) {
    numbers_.remove(key);
    throw;
  }
}

void AuthKeyRing::use(const std::string& key) {
  const std::lock_guard lock(mutex_);
  tell(numbers_.use(key));
}

void AuthKeyRing::remove(const std::string& key, bool end_streams) {
  const std::lock_guard lock(mutex_);
  tell(numbers_.remove(key));
  if (!end_streams) return;
  contexts_.visit(
      [](Context& context) { context.locked([](Endpoint& endpoint) { endpoint.end_outlived(); }); });
}

}  // namespace fab
