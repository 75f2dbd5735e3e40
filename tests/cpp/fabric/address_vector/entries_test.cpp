#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabric/address_vector/named_peer_memory.h"
#include "fabric/types/error.h"
#include "open_peer_memory.h"

// What goes with an address and goes away with it, and what is refused.
namespace fab {
namespace {

std::string socket6_of(char node) {
  std::string host(16, '\0');
  host.front() = 0x20, host.back() = node;
  return pack(SocketAddress::from_bytes(host, 5000));
}
PeerId find_socket(const AddressVector& vector, const std::string& address) {
  return vector.find({std::string(kSocketLink), 0, address});
}

std::pair<Errc, std::string> error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Errc::ok, ""};
}
bool says(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("who looks a peer up looks for no memory beside") {
  const AddressVectorOptions options;
  auto memory = std::make_unique<OpenMemory>(options);
  const OpenMemory& open = *memory;
  AddressVector vector(options, std::move(memory));
  vector.insert(name_of(1));
  const int before = open.looks;
  CHECK(vector.find(part_of(1)) == 0);
  CHECK(open.looks == before);
}

TEST_CASE("a vector that others open by its name is what they ask for, or they are told what differs") {
  const AddressVectorOptions made{.format = AddressFormat::sockaddr_in, .rx_bits = 3, .type = 1};
  const VectorName name{"test", "options " + std::to_string(::getpid()), false, 0};
  const AddressVector first(made, open_named_peer_memory(name, made));
  const auto refused = [&](const AddressVectorOptions& asked) {
    const auto [code, why] = error_of([&] { open_named_peer_memory(name, asked); });
    CHECK((code == Errc::ok || code == Errc::invalid));
    return why;
  };
  CHECK(refused(made).empty());
  AddressVectorOptions other = made;
  other.format = AddressFormat::sockaddr_in6;
  CHECK(says(refused(other), "another addr_format"));
  (other = made).rx_bits = 4;
  CHECK(says(refused(other), "rx_ctx_bits=3, not 4"));
  (other = made).type = 2;
  CHECK(says(refused(other), "another type"));
  (other = made).user_ids = true;
  CHECK(says(refused(other), "another user_id"));

  std::set<std::uint64_t> places;  // of the tables of handles, chosen anew for each
  for (int i = 0; i < 3; ++i) {
    const VectorName next{"test", name.name + " " + std::to_string(i), false, 0};
    places.insert(AddressVector(other, open_named_peer_memory(next, other)).map_address());
  }
  CHECK(places.size() > 1);
}

TEST_CASE("a handle has room for so many bits of a receive context") {
  CHECK(AddressVector({.rx_bits = 8, .max_group = kMaxGroupId}).options().rx_bits == 8);
  CHECK(AddressVector({.rx_bits = 16}).options().rx_bits == 16);
  const auto with_groups = error_of([] { AddressVector({.rx_bits = 9, .max_group = kMaxGroupId}); });
  CHECK(with_groups.first == Errc::invalid);
  CHECK(says(with_groups.second, "and the peer group a handle has room for 8"));
  CHECK(says(error_of([] { AddressVector({.rx_bits = 17}); }).second, "the index a handle has room for 16"));
}

TEST_CASE("a handle that is not there is refused everywhere, and changes nothing") {
  for (const bool symmetric : {false, true}) {
    AddressVector vector({.format = AddressFormat::sockaddr_in, .symmetric = symmetric, .user_ids = true});
    CHECK(vector.generation(0) == 0);
    for (int i = 0; i < 3; ++i) vector.insert(socket_of(i));
    vector.remove(1);
    const auto changes = vector.changes();
    const PeerId with_group = (PeerId{1} << kPeerIndexBits) | 2;
    for (const PeerId peer : {PeerId{1}, PeerId{3}, with_group, kNoPeer}) {
      char room[32];
      CHECK_FALSE(vector.contains(peer));
      CHECK(error_of([&] { vector.lookup(peer); }).first == Errc::invalid);
      CHECK(error_of([&] { vector.lookup(peer, room); }).first == Errc::invalid);
      CHECK(error_of([&] { vector.name(peer); }).first == Errc::invalid);
      CHECK(error_of([&] { vector.auth(peer); }).first == Errc::invalid);
      CHECK(error_of([&] { vector.remove(peer); }).first == Errc::invalid);
      CHECK(error_of([&] { vector.set_user_id(peer, 5); }).first == Errc::invalid);
    }
    CHECK(says(error_of([&] { vector.lookup(3); }).second, "peer 3 is not in the address vector"));
    CHECK(vector.changes() == changes);
    CHECK(vector.size() == 2);
    CHECK(vector.index_of(2) == 2);
  }
}

TEST_CASE("an address comes as far as there is room for it, and its length always") {
  AddressVector names;
  AddressVector runs({.format = AddressFormat::sockaddr_in, .symmetric = true});
  const std::string long_name = Name{{{"tcp.0", 0, std::string(1000, 'x')}}}.encode();
  names.insert(long_name);
  runs.insert(socket_of(0));
  runs.insert(socket_of(1));
  for (const auto& [vector, peer, address] :
       {std::tuple(&names, PeerId{0}, long_name), std::tuple(&runs, PeerId{1}, socket_of(1))}) {
    CHECK(vector->lookup(peer) == address);
    for (const std::size_t room :
         {std::size_t{0}, std::size_t{5}, address.size() - 1, address.size(), address.size() + 1}) {
      std::string out(address.size() + 4, '.');
      CHECK(vector->lookup(peer, std::span(out.data(), room)) == address.size());
      const std::size_t copied = std::min(room, address.size());
      CHECK(out == address.substr(0, copied) + std::string(out.size() - copied, '.'));
    }
  }
  CHECK(names.name(0).parts.front().link == "tcp.0");
  CHECK(runs.name(1).parts.front() == Part{std::string(kSocketLink), 0, socket_of(1)});
}

TEST_CASE("what is no address of the format is refused, with what is wanted instead") {
  const std::string v4 = socket_of(1), v6 = socket6_of(1), rubbish = "rubbish";
  const std::string no_port = socket_of(1, 0);
  struct Case {
    AddressFormat format;
    std::vector<std::string> good, bad;
    const char* wanted;
  };
  for (const Case& one :
       {Case{AddressFormat::sockaddr_in, {v4}, {v6, rubbish, no_port}, "a packed sockaddr_in with"},
        Case{AddressFormat::sockaddr_in6, {v6}, {v4, rubbish}, "a packed sockaddr_in6 with"},
        Case{AddressFormat::any_sockaddr,
             {v4, v6},
             {rubbish, no_port, name_of(1)},
             "a packed sockaddr_in or sockaddr_in6 with"},
        Case{AddressFormat::bundle, {name_of(1)}, {v4, rubbish}, ""}}) {
    AddressVector vector({.format = one.format});
    for (const std::string& address : one.good) CHECK(vector.lookup(vector.insert(address)) == address);
    for (const std::string& address : one.bad) {
      const auto [code, why] = error_of([&] { vector.insert(address); });
      CHECK(code == Errc::invalid);
      CHECK(says(why, one.wanted));
    }
    CHECK(vector.size() == one.good.size());
  }
  AddressVector vector({.format = AddressFormat::sockaddr_in});
  std::string padded = v4;
  padded.back() = 'x';  // what does not count is not kept
  CHECK(vector.lookup(vector.insert(padded)) == v4);
}

TEST_CASE("a peer needs a part that one of the domain's links can use") {
  AddressVector vector;
  vector.judge_parts(
      [](const PartView& part) {
        if (part.bytes == "newer") return PartVerdict{.found = other_version(part.link, 2, 1)};
        return PartVerdict{.usable = part.link == "tcp.0", .found = {}};
      },
      {"tcp.0", "shm.0"});
  const Name mixed{{{"ib.0", 0, "a"}, {"tcp.0", 0, "b"}, {"ib.0", 1, "c"}}};
  CHECK(vector.insert(mixed.encode()) == 0);
  const Name strange{{{"ib.0", 0, "a"}, {"ib.0", 1, "b"}, {"roce.0", 0, "c"}}};
  const auto [code, why] = error_of([&] { vector.insert(strange.encode()); });
  CHECK(code == Errc::unreachable);
  CHECK(says(why, "has tcp.0, shm.0, the peer ib.0, roce.0;"));
  CHECK(vector.size() == 1);
  // Parts in another version are kept beside others, and named where there are none.
  const std::string half = Name{{{"shm.0", 0, "newer"}, {"tcp.0", 0, "b"}}}.encode();
  CHECK(vector.lookup(vector.insert(half)) == half);
  const Name newer{{{"shm.0", 0, "newer"}, {"tcp.0", 0, "newer"}, {"ib.0", 0, "a"}}};
  const auto [refused, told] = error_of([&] { vector.insert(newer.encode()); });
  CHECK(refused == Errc::unreachable);
  CHECK(says(told, "its address has shm.0 in version 2 (this library has version 1), tcp.0 in version 2"));
}

TEST_CASE("duplicates are refused where they are not wanted, with and without runs") {
  for (const bool symmetric : {false, true}) {
    AddressVector vector(
        {.format = AddressFormat::sockaddr_in, .symmetric = symmetric, .reject_duplicates = true});
    for (int i = 0; i < 4; ++i) vector.insert(socket_of(i));
    CHECK(error_of([&] { vector.insert(socket_of(2)); }).first == Errc::already);
    vector.remove(2);
    CHECK(vector.insert(socket_of(9)) == 2);
    CHECK(vector.insert(socket_of(2)) == 4);
    CHECK(error_of([&] { vector.insert(socket_of(9)); }).first == Errc::already);
  }
  AddressVector names({.reject_duplicates = true});
  names.insert(name_of(1));
  const Name longer{{part_of(1), part_of(2)}};
  CHECK(names.insert(longer.encode()) == 1);  // has the first part, and is another address
  CHECK(error_of([&] { names.insert(name_of(1)); }).first == Errc::already);
}

TEST_CASE("several addresses: each has its own outcome, and others have their turn after 64") {
  OpenVector open;
  std::vector<std::string> names(150);
  for (std::size_t i = 0; i < names.size(); ++i)
    names[i] = i == 70 ? "rubbish" : name_of(static_cast<int>(i));
  const std::vector<std::string_view> addresses(names.begin(), names.end());
  std::vector<std::size_t> told;
  open.vector.insert(
      addresses, [](std::size_t at) { return AddressVector::Extra{.auth = static_cast<std::uint32_t>(at)}; },
      [&](std::size_t at, PeerId peer, const Error* error) {
        told.push_back(at);
        CHECK(peer == (at == 70 ? kNoPeer : at < 70 ? at : at - 1));
        CHECK((error && error->code() == Errc::invalid) == (at == 70));
      });
  std::vector<std::size_t> all(names.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  CHECK(told == all);
  CHECK(open.memory.turns == 3);
  CHECK(open.vector.size() == 149);
  for (const PeerId peer : {0, 69, 70, 148}) CHECK(open.vector.auth(peer) == peer + (peer >= 70));
}

TEST_CASE("what goes with an address goes away with it, and every change is counted") {
  AddressVector vector({.format = AddressFormat::sockaddr_in, .symmetric = true, .user_ids = true});
  auto before = vector.changes();
  const auto changed = [&] { return std::exchange(before, vector.changes()) < before; };
  vector.insert(socket_of(0));
  CHECK(changed());
  CHECK(vector.insert(socket_of(1), {.auth = 3, .user_id = 70}) == 1);
  CHECK(changed());
  CHECK(vector.insert(socket_of(1), {.auth = 4}) == 2);
  CHECK(vector.insert(socket_of(1)) == 3);
  CHECK(changed());
  CHECK(find_socket(vector, socket_of(1)) == 1);
  const Part part{std::string(kSocketLink), 0, socket_of(1)};
  CHECK(vector.find(part, 0) == 3);
  CHECK(vector.find(part, 3) == 1);
  CHECK(vector.find(part, 4) == 2);
  CHECK(vector.find(part, 5) == kNoPeer);
  CHECK(vector.find({"tcp.0", 0, socket_of(1)}) == kNoPeer);
  CHECK(vector.auth(0) == 0);
  CHECK(vector.auth(1) == 3);
  CHECK(vector.reported(0) == kNoPeer);
  CHECK(vector.reported(1) == 70);
  vector.set_user_id(0, 60);
  CHECK(changed());
  CHECK(vector.reported(0) == 60);
  vector.set_key_user_id(3, 80);
  CHECK(changed());
  CHECK(vector.reported_of_key(3) == 80);
  CHECK(vector.reported_of_key(4) == kNoPeer);
  vector.set_key_user_id(3, std::nullopt);
  CHECK(vector.reported_of_key(3) == kNoPeer);
  vector.remove(1);
  CHECK(changed());
  CHECK(vector.insert(socket_of(2)) == 1);
  CHECK(vector.auth(1) == 0);
  CHECK(vector.reported(1) == kNoPeer);
  vector.remove(0);
  CHECK(vector.insert(socket_of(0)) == 0);
  CHECK(vector.reported(0) == kNoPeer);

  AddressVector plain;
  CHECK(plain.reported_of_key(3) == 2);  // the index of the key
  CHECK(error_of([&] { plain.set_key_user_id(3, 1); }).first == Errc::invalid);
  plain.insert(name_of(1));
  CHECK(plain.auth(0) == 0);
  CHECK(plain.find(part_of(1), 0) == 0);
  plain.remove(0);
  CHECK(plain.insert(name_of(0), {.user_id = 9}) == 0);
  plain.remove(0);
  plain.insert(name_of(0));
  CHECK(plain.reported(0) == 0);
}

TEST_CASE("what removed addresses took is used again") {
  OpenVector open;
  std::uint64_t words = 0;
  for (int round = 0; round < 20; ++round) {
    const PeerId peer = open.vector.insert(name_of(10 + round % 5));
    if (round == 9) words = open.memory.header().words;
    open.vector.remove(peer);
  }
  CHECK(open.memory.header().words == words);
}

TEST_CASE("who watches is told which index is vacant, as long as he lives") {
  struct Watcher final : PeerWatcher {
    void removed(std::uint64_t index) noexcept override { told.push_back(index); }
    std::vector<std::uint64_t> told;
  };
  AddressVector vector({.rx_bits = 4});
  for (int i = 0; i < 4; ++i) vector.insert(name_of(i));
  auto first = std::make_shared<Watcher>(), second = std::make_shared<Watcher>();
  vector.watch(first);
  vector.watch(second);
  vector.remove((PeerId{5} << 60) | 2);  // the receive context in a handle does not count
  second.reset();
  auto third = std::make_shared<Watcher>();
  vector.watch(third);
  vector.remove(1);
  CHECK(first->told == std::vector<std::uint64_t>{2, 1});
  CHECK(third->told == std::vector<std::uint64_t>{1});
}

TEST_CASE("a vector that was opened to be read is not changed") {
  OpenVector open({.user_ids = true});
  AddressVector& vector = open.vector;
  vector.insert(name_of(0));
  open.memory.read_only = true;
  const std::string_view more[] = {"rubbish"};
  const auto done = [](std::size_t, PeerId, const Error*) { FAIL("nothing was begun"); };
  CHECK(error_of([&] { vector.insert(name_of(1)); }).first == Errc::access);
  CHECK(error_of([&] { vector.insert(more, [](auto) { return AddressVector::Extra{}; }, done); }).first ==
        Errc::access);
  CHECK(error_of([&] { vector.remove(0); }).first == Errc::access);
  CHECK(error_of([&] { vector.set_user_id(0, 1); }).first == Errc::access);
  CHECK(error_of([&] { vector.set_key_user_id(1, 1); }).first == Errc::access);
  CHECK(vector.size() == 1);
  CHECK(vector.reported_of_key(1) == kNoPeer);
}

TEST_CASE("the first number after the last is that of no vacant entry, and no index is beyond the last") {
  OpenVector open;
  open.memory.header().next_generation = ~std::uint32_t{0} - 1;
  std::set<std::uint32_t> generations;
  for (int i = 0; i < 3; ++i) generations.insert(open.vector.generation(open.vector.insert(name_of(i))));
  CHECK(generations == std::set<std::uint32_t>{1, 2, ~std::uint32_t{0}});
  PeerHeader& header = open.memory.header();
  header.run[0].first = 3;
  header.run[0].count = kMaxPeers - 3;
  header.run[0].generation = 3;
  header.runs = 1;
  header.used = kMaxPeers;
  CHECK(error_of([&] { open.vector.insert(name_of(3)); }).first == Errc::no_memory);
}

}  // namespace fab
