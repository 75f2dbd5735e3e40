#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/context/context_set.h"
#include "fabric/domain/auth_numbers.h"
#include "fabric/segment/segment.h"

namespace fab {

// The authorization keys of a domain, and how one is replaced. Safe from any thread.
//
// That takes three steps, each of which all who have the key take before anybody takes the next one: so no
// call is refused meanwhile. From add() on, peers may prove the new key where they prove the former one. From
// use() on, this side shows the new one where it calls. From remove() on, nobody can call with the former
// one. Regions and grants ask for the number of a key, which stays.
class AuthKeyRing final {
 public:
  // Both outlive this. `own`: the domain's key; empty: it asks for none.
  AuthKeyRing(std::string own, Segment& segment, ContextSet& contexts)
      : numbers_(std::move(own)), segment_(segment), contexts_(contexts) {}

  // These do what AuthNumbers says.
  std::uint32_t number_of(const std::string& key) { return numbers_.of(key); }
  std::uint32_t number_of_any(std::span<const std::string> keys) { return numbers_.of_any(keys); }
  // The domain's own key, as this side shows it; empty: it asks for none.
  std::string own() const { return numbers_.keys(0).front(); }
  std::size_t own_keys() const;  // how many keys peers may prove as the domain's own; 0: it asks for none

  // A key of an endpoint that opens.
  struct Key {
    std::string key;
    std::uint32_t auth = 0;  // in the address vector, as AddressVector::auth()
  };
  // Calls `open` with what the keys are now, which stay so until it returns. No keys: the domain's own.
  // Throws Error(invalid) for too many.
  using Open = std::function<std::shared_ptr<Context>(AuthKeys)>;
  std::shared_ptr<Context> open(const std::vector<Key>& keys, const Open& open);

  // These throw Error(invalid) or std::bad_alloc, and nothing has changed then. `former` is a key of the
  // domain or, if it is empty, the domain's own. True: nobody could call with `key` before.
  bool add(const std::string& key, const std::string& former);
  void use(const std::string& key);
  // Not the key in use. Streams and paths that were proven with it go on or, with `end_streams`, end: what is
  // outstanding fails with peer_lost.
  void remove(const std::string& key, bool end_streams);

 private:
  AuthKeys keys_of(const std::vector<Key>& asked);
  void check_room(std::uint32_t number, std::size_t secrets);
  void tell(std::uint32_t number, std::span<const std::string> keys);

  // Held while secrets change, and while a context is opened with them. Nothing of the user runs under it.
  Mutex mutex_;
  AuthNumbers numbers_;  // has a lock of its own for those who only ask
  Segment& segment_;
  ContextSet& contexts_;
};

}  // namespace fab
