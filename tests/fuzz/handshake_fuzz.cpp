#include <memory>
#include <string>

#include "base/crypto/key_pair.h"
#include "fabric/session/frames/handshake.h"
#include "input.h"
#include "signatures.h"

// The handshake, of which somebody in between changes a message, and the parsers that it uses. Whatever is
// changed, nobody crashes; with an authorization key a side comes to its end only if it has heard what the
// other one has said, and with key pairs a caller that was changed on its way is never taken for the one that
// it names.

using namespace fab;
using namespace fab::test;

namespace {

void parsers(std::string_view bytes) {
  if (const auto address = EndpointAddress::parse(bytes)) {
    demand(address->encode() == bytes, "a network part is encoded as it was read");
    demand(EndpointAddress::valid(bytes), "a part that can be read is valid");
  }
  HelloHeader::parse(bytes.substr(0, kHelloHeader));
  missing_of_message(bytes);
  Hello::parse(bytes);
  Challenge::parse(bytes);
  Proof::parse(bytes);
  Welcome::parse(bytes);
  Refusal::parse(bytes);
}

struct Side {
  Side(const std::shared_ptr<const KeyPair>& pair, bool bound, bool keyed, std::uint8_t number)
      : keys{{keyed ? "a secret" : "", 1}} {
    EndpointId address{};
    address.fill(number);
    identity.keys = &keys;
    identity.by_address = true;
    identity.take_id(bound ? pair : nullptr, "tcp.0", number, address);
    where = {.id = identity.id, .kind = identity.kind, .network = {}, .addresses = {}};
    where.addresses.push_back(SocketAddress::from_bytes(std::string("\x7f\0\0\1", 4), 4711));
    identity.part.bytes = where.encode();
  }
  AuthKeys keys;
  Identity identity;
  EndpointAddress where;
};

// All sides, with keys that the signatures in force can read.
struct Cast {
  Cast() {
    const auto pair = KeyPair::make();
    for (const bool bound : {false, true})
      for (const bool keyed : {false, true})
        for (const std::uint8_t number : {std::uint8_t{1}, std::uint8_t{2}})
          sides[bound][keyed][number - 1] = std::make_unique<Side>(pair, bound, keyed, number);
  }
  // Never destroyed, because each kind of keys can be freed only while it is in force.
  static const Cast& in_force() {
    static const Cast* all[2] = {};
    const Cast*& cast = all[signatures_are_real() ? 1 : 0];
    if (!cast) cast = new Cast;
    return *cast;
  }
  std::unique_ptr<Side> sides[2][2][2];
};

// Changes a message as the input wants it: some bytes of it, its end, or all of it.
std::string on_its_way(std::string message, Input& input) {
  const std::uint8_t how = input.byte();
  if (how < 128 || message.empty()) return message;
  if (how < 192) {
    for (int i = 0; i < how % 4 + 1; ++i)
      message[input.get<std::uint16_t>() % message.size()] ^= static_cast<char>(input.byte());
    return message;
  }
  if (how < 224) return message.substr(0, input.get<std::uint16_t>() % message.size());
  return std::string(input.take(input.get<std::uint16_t>()));
}

void exchange(Input& input) {
  const std::uint8_t kind = input.byte();
  const bool keyed = (kind & 1) != 0;
  // The real signatures take most of the time; of what is around them the others show as much.
  signatures_are_real(kind >= 248);
  const Cast& cast = Cast::in_force();
  const Side& from = *cast.sides[(kind >> 1) & 1][keyed][0];
  const Side& to = *cast.sides[(kind >> 2) & 1][keyed][1];
  CallerHandshake caller(from.identity, 0, to.where, 7);
  AcceptorHandshake called(to.identity, place_of(to.where.addresses.front()));
  bool changed = false;
  const auto pass = [&](const std::string& message) {
    std::string arrived = on_its_way(message, input);
    changed |= arrived != message;
    return arrived;
  };
  const auto challenge = called.receive(pass(caller.hello()));
  if (challenge.answer.empty()) return;
  const auto proof = caller.receive(pass(challenge.answer));
  if (proof.answer.empty()) return;
  const auto end = called.receive(pass(proof.answer));
  if (!called.done()) return;
  demand(end.error == Errc::ok, "what is done has no error");
  demand(!changed || !keyed, "with a key nobody is let in who was changed on the way");
  demand(!changed || called.peer_key() == kNoPublicKey, "who was changed on the way has proven nothing");
  caller.receive(pass(called.welcome(9)));
  demand(!caller.done() || !changed || !keyed, "with a key nobody believes an answer that was changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parsers({reinterpret_cast<const char*>(data), size});
  Input input(data, size);
  exchange(input);
  return 0;
}
