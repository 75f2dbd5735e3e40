#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "fabric/types/error.h"
#include "open_peer_memory.h"

// Whatever others write into the memory of a vector, each call on it ends, and touches no other memory.
namespace fab {
namespace {

template <class Call>
bool fails(Call&& call) {
  try {
    call();
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

TEST_CASE("a count that is too high is an error, and no walk follows it") {
  for (const std::uint64_t used :
       {std::uint64_t{1} << 20, kMaxPeers, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    CAPTURE(used);
    OpenVector open({.reject_duplicates = true});
    AddressVector& vector = open.vector;
    for (int i = 0; i < 20; ++i) vector.insert(name_of(i));
    open.memory.header().used = used;
    CHECK(fails([&] { vector.insert(name_of(20)); }));
    open.memory.header().index_version |= 1;
    CHECK(vector.find(part_of(7)) == 7);
    CHECK(vector.find(part_of(77)) == kNoPeer);
    // The repair that follows a dead writer finds the count.
    open.memory.header().writing = 1;
    CHECK(fails([&] { vector.remove(99); }));
    CHECK(vector.size() == 20);
    const PeerId peer = vector.insert(name_of(20));
    CHECK(vector.find(part_of(20)) == peer);
    CHECK(vector.find(part_of(7)) == 7);
  }
}

TEST_CASE("a vector has no more peers than indices") {
  OpenVector open;
  for (int i = 0; i < 20; ++i) open.vector.insert(name_of(i));
  open.memory.header().live = ~std::uint64_t{0};
  CHECK(open.vector.size() == 20);
}

TEST_CASE("a count that is too low gives no peer's index to another one") {
  OpenVector open;
  AddressVector& vector = open.vector;
  for (int i = 0; i < 20; ++i) vector.insert(name_of(i));
  open.memory.header().used = 5;
  CHECK(fails([&] { vector.insert(name_of(20)); }));
  open.memory.header().used = 20;
  CHECK(vector.find(part_of(5)) == 5);
}

TEST_CASE("an index that is wrongly taken for vacant is not given away") {
  OpenVector open;
  AddressVector& vector = open.vector;
  for (int i = 0; i < 20; ++i) vector.insert(name_of(i));
  PeerVacancies(open.memory).add(3);
  CHECK(vector.insert(name_of(20)) == 20);
  PeerVacancies(open.memory).add(400'000);
  CHECK(vector.insert(name_of(21)) == 21);
  for (int i = 0; i < 22; ++i) CHECK(vector.find(part_of(i)) == static_cast<PeerId>(i));
}

TEST_CASE("a chain of buckets that leads in a circle ends") {
  OpenVector open;
  AddressVector& vector = open.vector;
  for (int i = 0; i < 2000; ++i) vector.insert(name_of(1));
  PeerHeader& header = open.memory.header();
  struct Bucket {
    std::uint64_t slots[7];
    std::atomic<std::uint32_t> next;
    std::uint32_t unused;
  };
  PeerColumn<Bucket, PeerSection::overflow> overflow(open.memory);
  for (std::uint32_t i = 0; i < header.overflow_used; ++i) overflow.find(i)->next = i + 1;
  header.overflow_used = ~0u;
  CHECK(vector.find(part_of(2)) == kNoPeer);
  CHECK(vector.find(part_of(1)) != kNoPeer);
  vector.remove(1999);
}

TEST_CASE("random words in the header end no call badly") {
  const char* given = std::getenv("FAB_SEED");
  const auto seed =
      given ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::cout << "FAB_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  const std::uint64_t interesting[] = {
      0, 1, 0x7fffffff, 0xffffffff, std::uint64_t{1} << 32, ~std::uint64_t{0}};
  for (int round = 0; round < 400; ++round) {
    const bool sockets = round % 2;
    OpenVector open(
        {.format = sockets ? AddressFormat::sockaddr_in : AddressFormat::bundle, .symmetric = sockets});
    AddressVector& vector = open.vector;
    const auto address = [&](int i) { return sockets ? socket_of(i) : name_of(i); };
    for (int i = 0; i < 40; ++i) vector.insert(address(i));
    for (const PeerId gone : {5, 6, 30}) vector.remove(gone);
    PeerHeader& header = open.memory.header();
    auto* const words = reinterpret_cast<std::uint32_t*>(&header.writing);
    const std::size_t count = offsetof(PeerHeader, file_length) / 4 - offsetof(PeerHeader, writing) / 4;
    for (int i = 0; i < 20; ++i) {
      // Most of the header is places of shapes, and runs.
      const std::size_t at = random() % 2 ? random() % 96 : random() % count;
      const std::uint64_t word = random() % 2 ? random() : interesting[random() % std::size(interesting)];
      words[at % count] = static_cast<std::uint32_t>(word);
      (void)fails([&] { vector.insert(address(50 + i)); });
      (void)fails([&] { vector.lookup(random() % 64); });
      (void)vector.find(sockets ? Part{std::string(kSocketLink), 0, address(i)} : part_of(i));
      (void)fails([&] { vector.remove(random() % 64); });
    }
  }
}

}  // namespace fab
