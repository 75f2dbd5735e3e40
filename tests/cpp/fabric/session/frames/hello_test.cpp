#include "fabric/session/frames/hello.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bytes/wire.h"
#include "fabric/types/versions.h"

using namespace fab;

// What the documented bytes of a handshake are, and that nothing else is taken for them.
namespace {

const EndpointId kFrom{1, 2, 3, 250}, kTo{9, 8, 7};
const IdBinding kBinding{.key = {5, 6, 7}, .number = 8};
const Nonce kNonce{4, 5, 6, 0xFF};

template <std::size_t N>
std::string text(const std::array<std::uint8_t, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

EndpointAddress somewhere(std::size_t addresses = 1) {
  EndpointAddress where{.id = kFrom, .network = {77}, .addresses = {}};
  for (std::size_t i = 0; i < addresses; ++i)
    where.addresses.push_back(SocketAddress::from_bytes(std::string("\x7f\0\0\1", 4), 4711));
  return where;
}

// A part of a name with one address.
std::string part_of(std::uint8_t family, std::uint16_t port, const std::string& address,
                    std::uint8_t version = 2, std::uint8_t count = 1, std::uint8_t kind = 0) {
  WireWriter out;
  out.put(version).put(kind).raw(text(kFrom)).raw(text(std::array<std::uint8_t, 16>{77})).put(count);
  return out.put(family).put(port).raw(address).take();
}

Hello some_hello(bool keyed = true, bool bound = false) {
  Hello hello;
  hello.versions = {.lowest = 2, .highest = 0x0405};
  hello.capabilities = 0x8877665544332211;
  hello.from = kFrom;
  hello.to = kTo;
  hello.stream = 0x1122334455667788;
  hello.nonce = kNonce;
  hello.keyed = keyed;
  hello.place = "a place";
  EndpointAddress where = somewhere(2);
  if (bound) {
    hello.binding = kBinding;
    hello.from = where.id = bound_id(kBinding, "tcp.0", 3);
    where.kind = IdKind::key;
  }
  hello.part = {"tcp.0", 3, where.encode()};
  return hello;
}

// What is in a message, whose header says how long that is.
std::string body_of(const std::string& message, HelloType type) {
  const auto header = HelloHeader::parse(message.substr(0, kHelloHeader));
  REQUIRE(header);
  CHECK(header->type == type);
  CHECK(header->length == message.size() - kHelloHeader);
  return message.substr(kHelloHeader);
}

void is_exact(const std::string& body, const std::function<bool(std::string_view)>& parses) {
  CHECK(parses(body));
  for (std::size_t cut = 0; cut < body.size(); ++cut) CHECK_FALSE(parses(body.substr(0, cut)));
  CHECK_FALSE(parses(body + '\0'));
}

}  // namespace

TEST_CASE("a part of a name says who is where, and nothing that is not whole is one") {
  EndpointAddress where = somewhere();
  where.addresses.push_back(SocketAddress::from_bytes(std::string(15, '\0') + '\1', 80));
  const std::string bytes = where.encode();
  CHECK(bytes.size() == 2 + 16 + 16 + 1 + (1 + 2 + 4) + (1 + 2 + 16));
  CHECK(bytes[35] == 4);
  CHECK(bytes[42] == 6);
  const auto back = EndpointAddress::parse(bytes);
  REQUIRE(back);
  CHECK(back->id == where.id);
  CHECK(back->network == where.network);
  REQUIRE(back->addresses.size() == 2);
  CHECK(back->addresses[0].text() == "127.0.0.1:4711");
  CHECK(back->addresses[1].text() == "[::1]:80");
  for (const auto parses : {+[](std::string_view part) { return EndpointAddress::parse(part).has_value(); },
                            +[](std::string_view part) { return EndpointAddress::valid(part); }}) {
    is_exact(bytes, parses);
    const std::string address("\x7f\0\0\1", 4);
    CHECK(parses(part_of(4, 1, address)));
    CHECK(somewhere().encode() == part_of(4, 4711, address));
    CHECK(parses(part_of(4, 1, address, 2, 1, 1)));
    CHECK_FALSE(parses(part_of(4, 1, address, 2, 1, 2)));  // no kind of id that we know
    CHECK_FALSE(parses(part_of(4, 1, address, 1)));        // another version
    CHECK(parses(part_of(4, 1, address, versions::kExchangePart)));
    CHECK_FALSE(parses(part_of(4, 1, address, 3)));
    CHECK_FALSE(parses(part_of(4, 1, address, versions::kExchangePart + 1)));
    CHECK_FALSE(parses(part_of(4, 0, address)));        // no port
    CHECK_FALSE(parses(part_of(5, 1, address)));        // no family that we know
    CHECK_FALSE(parses(part_of(6, 1, address)));        // too short for its family
    CHECK_FALSE(parses(part_of(4, 1, address, 2, 0)));  // an address more than it says
    CHECK_FALSE(parses(somewhere(0).encode()));         // nowhere
    CHECK(parses(somewhere(64).encode()));
    CHECK_FALSE(parses(somewhere(65).encode()));
  }
}

TEST_CASE("a part whose addresses take exchanges has a version of its own") {
  EndpointAddress where = somewhere();
  where.by_exchange = true;
  const std::string bytes = where.encode();
  CHECK(bytes.front() == static_cast<char>(versions::kExchangePart));
  CHECK(bytes.substr(1) == somewhere().encode().substr(1));
  CHECK(EndpointAddress::parse(bytes).value_or(EndpointAddress{}).by_exchange);
  CHECK_FALSE(EndpointAddress::parse(somewhere().encode()).value_or(where).by_exchange);
  CHECK(EndpointAddress::judge({"verbs.0", 0, bytes}).usable);
  CHECK_THROWS_AS(EndpointAddress::judge({"verbs.0", 0, bytes + '\0'}), Error);
}

TEST_CASE("a part of another version is left alone, and a broken one of this version is refused") {
  const std::string address("\x7f\0\0\1", 4);
  const auto judge = [](const std::string& bytes) { return EndpointAddress::judge({"tcp.0", 0, bytes}); };
  CHECK(judge(part_of(4, 1, address)).usable);
  const PartVerdict newer = judge(part_of(4, 1, address, versions::kEndpointPart + 1) + "and what it adds");
  CHECK_FALSE(newer.usable);
  CHECK(newer.found == other_version("tcp.0", versions::kEndpointPart + 1, versions::kEndpointPart));
  CHECK_THROWS_AS(judge(part_of(5, 1, address)), Error);
  CHECK_THROWS_AS(judge(""), Error);
}

TEST_CASE("the network is the same for all processes of one host, and says nothing of it") {
  CHECK(this_network() == this_network());
  CHECK(this_network() != std::array<std::uint8_t, 16>{});
}

TEST_CASE("a header is of this protocol, of a known type if it is of this version, and short") {
  const auto header = [](std::uint32_t magic, std::uint16_t version, std::uint8_t type, std::uint8_t zero,
                         std::uint32_t length) {
    return WireWriter().put(magic).put(version).put(type).put(zero).put(length).take();
  };
  constexpr std::uint32_t kMagic = 0x31746670;
  const auto parses = [](std::string_view bytes) { return HelloHeader::parse(bytes).has_value(); };
  is_exact(header(kMagic, 3, 1, 0, 7), parses);
  for (std::uint8_t type = 0; type < 8; ++type)
    CHECK(parses(header(kMagic, 3, type, 0, 7)) == (type >= 1 && type <= 5));
  CHECK(parses(header(kMagic, 2, 6, 0, 7)));  // what types there are, only that version knows
  CHECK(HelloHeader::parse(header(kMagic, 0x0405, 1, 0, 7))->version == 0x0405);
  const auto longest = HelloHeader::parse(header(kMagic, 3, 5, 0, 4096));
  REQUIRE(longest);
  CHECK(longest->version == 3);
  CHECK(longest->type == HelloType::refuse);
  CHECK(longest->length == 4096);
  CHECK_FALSE(parses(header(kMagic, 3, 1, 0, 4097)));
  CHECK_FALSE(parses(header(kMagic + 1, 3, 1, 0, 7)));
  CHECK_FALSE(parses(header(kMagic, 3, 1, 1, 7)));
}

TEST_CASE("what begins like a message, or like a record of TLS, says how much of it is missing") {
  const auto missing = [](const std::string& begun) { return missing_of_message(begun); };
  const std::string message = some_hello().encode();
  CHECK(begins_hello(message));
  CHECK_FALSE(begins_tls(message));
  for (const bool hello : {true, false}) {
    CHECK_FALSE((hello ? begins_hello : begins_tls)(""));
    CHECK_FALSE((hello ? begins_hello : begins_tls)("x"));
  }
  for (std::size_t begun = 0; begun <= message.size();
       ++begun)  // the header first, then all that it tells of
    CHECK(missing(message.substr(0, begun)) ==
          (begun < kHelloHeader ? kHelloHeader - begun : message.size() - begun));
  CHECK_FALSE(missing(message + '\0'));
  CHECK_FALSE(missing(std::string(kHelloHeader, 'x')));

  const auto record = [](std::size_t length) {  // type, version, length, and as much as it says
    return std::string{'\x16', '\3', '\1', static_cast<char>(length >> 8), static_cast<char>(length & 0xFF)} +
           std::string(length, 'r');
  };
  CHECK(begins_tls(record(300)));
  CHECK_FALSE(begins_hello(record(300)));
  CHECK(missing(record(300).substr(0, 3)) == kHelloHeader - 3);
  CHECK(missing(record(300).substr(0, kHelloHeader)) == 305 - kHelloHeader);
  CHECK(missing(record(300)) == std::size_t{0});
  CHECK_FALSE(missing(record(300) + 'x'));
  CHECK_FALSE(missing(record(0) + "longer than it"));
  constexpr std::size_t kLongest = kHelloHeader + kMaxHelloBody - 5;
  CHECK(missing(record(kLongest)) == std::size_t{0});
  CHECK_FALSE(missing(record(kLongest + 1)));
}

TEST_CASE("a hello says who calls whom, and belongs to the part of the name that it brings") {
  for (const auto& [keyed, bound] : {std::pair(false, false), {true, false}, {true, true}}) {
    const Hello hello = some_hello(keyed, bound);
    const std::string body = body_of(hello.encode(), HelloType::hello);
    is_exact(body, [](std::string_view bytes) { return Hello::parse(bytes).has_value(); });
    const auto back = Hello::parse(body);
    REQUIRE(back);
    CHECK(body.substr(0, 4) == std::string("\2\0\5\4", 4));  // the versions come first, in every version
    CHECK(back->versions == hello.versions);
    CHECK(back->capabilities == hello.capabilities);
    CHECK(back->binding.key == hello.binding.key);
    CHECK(back->binding.number == hello.binding.number);
    CHECK(back->place == hello.place);
    CHECK(back->from == hello.from);
    CHECK(back->to == hello.to);
    CHECK(back->stream == hello.stream);
    CHECK(back->nonce == hello.nonce);
    CHECK(back->keyed == keyed);
    CHECK(back->part == hello.part);
    CHECK(back->where.encode() == hello.part.bytes);
    std::string odd = body;
    odd[4 + 8 + 16 + 16 + 8 + 32] = 2;  // neither with a key nor without
    CHECK_FALSE(Hello::parse(odd));
  }
  Hello other = some_hello();
  other.from = kTo;  // whose part is another one's
  CHECK_FALSE(Hello::parse(body_of(other.encode(), HelloType::hello)));
  other = some_hello();
  other.part.bytes.pop_back();
  CHECK_FALSE(Hello::parse(body_of(other.encode(), HelloType::hello)));
  for (const auto change :
       {+[](Hello& of) { ++of.binding.number; }, +[](Hello& of) { of.binding.key[31] = 1; },
        +[](Hello& of) { of.binding = {}; }, +[](Hello& of) { ++of.part.context; },
        +[](Hello& of) { of.part.link = "tcp.1"; }}) {
    Hello bound = some_hello(true, true);
    change(bound);  // its id belongs to what was there before
    CHECK_FALSE(Hello::parse(body_of(bound.encode(), HelloType::hello)));
  }
  other = some_hello();
  other.binding = kBinding;  // beside an id that is an address, and so no hash of it
  CHECK(Hello::parse(body_of(other.encode(), HelloType::hello))->binding == kBinding);
}

TEST_CASE("the other messages come back as they were sent, and nothing else is taken for them") {
  const Welcome welcome{.stream = 0x0102030405060708, .key = {1, 2, 3}};
  const std::string greeting = body_of(welcome.encode(), HelloType::welcome);
  is_exact(greeting, [](std::string_view bytes) { return Welcome::parse(bytes).has_value(); });
  const auto back = Welcome::parse(greeting);
  REQUIRE(back);
  CHECK(back->stream == welcome.stream);
  CHECK(back->key == welcome.key);

  Challenge asked{.capabilities = 3,
                  .nonce = kNonce,
                  .id = bound_id(kBinding, "tcp.0", 3),
                  .binding = kBinding,
                  .link = "tcp.0",
                  .context = 3,
                  .signature = {9, 8}};
  const std::string challenge = body_of(asked.encode(), HelloType::challenge);
  is_exact(challenge, [](std::string_view bytes) { return Challenge::parse(bytes).has_value(); });
  const auto heard = Challenge::parse(challenge);
  REQUIRE(heard);
  CHECK(heard->encode() == asked.encode());
  CHECK(heard->nonce == kNonce);
  CHECK(heard->id == asked.id);
  CHECK(heard->signature == asked.signature);
  CHECK(challenge == asked.signed_fields() + text(asked.signature));
  ++asked.binding.number;
  CHECK_FALSE(Challenge::parse(body_of(asked.encode(), HelloType::challenge)));
  CHECK(Challenge::parse(body_of(Challenge{.id = kTo}.encode(), HelloType::challenge)));

  const Proof shown{.signature = {1, 2}, .key = {7, 8, 9}};
  const std::string proof = body_of(shown.encode(), HelloType::proof);
  is_exact(proof, [](std::string_view bytes) { return Proof::parse(bytes).has_value(); });
  CHECK(Proof::parse(proof)->signature == shown.signature);
  CHECK(Proof::parse(proof)->key == shown.key);

  const Refusal refused{.reason = Errc::key_rejected, .versions = {.lowest = 4, .highest = 5}};
  const std::string refusal = body_of(refused.encode(), HelloType::refuse);
  is_exact(refusal, [](std::string_view bytes) { return Refusal::parse(bytes).has_value(); });
  CHECK(Refusal::parse(refusal)->reason == Errc::key_rejected);
  CHECK(Refusal::parse(refusal)->versions == refused.versions);
  const auto reason = [](std::uint32_t code) {
    return Refusal::parse(WireWriter().put(code).put(std::uint32_t{0}).take());
  };
  CHECK_FALSE(reason(0));  // no reason at all
  CHECK(reason(1));
  CHECK(reason(1023));
  CHECK_FALSE(reason(1024));
}

TEST_CASE("the id of a public key is documented") {
  // Computed by Python's hashlib from docs/wire.md.
  const EndpointId id = bound_id(kBinding, "tcp.0", 3);
  const std::uint8_t documented[] = {0x80, 0x87, 0x9a, 0xbf, 0x76, 0x16, 0xf0, 0x99};
  CHECK(std::equal(std::begin(documented), std::end(documented), id.begin()));
}

TEST_CASE("digests are the same in every bit or not at all") {
  const Digest digest{1, 2, 3};
  CHECK(same(digest, digest));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 0x80;
    CHECK_FALSE(same(digest, other));
  }
}
