#include <doctest/doctest.h>

#include <string>

#include "fabric/types/error.h"
#include "open_peer_memory.h"

// What a writer that died leaves half done: entries count, and all else follows from them.
namespace fab {
namespace {

PeerId find_socket(const AddressVector& vector, const std::string& address) {
  return vector.find({std::string(kSocketLink), 0, address});
}

void dies(PeerHeader& header) {
  header.writing = 1;
  header.live = 777;
  header.index_version |= 1;
}

}  // namespace

TEST_CASE("the next writer puts right what the dead one counted, indexed and took for vacant") {
  for (const bool symmetric : {false, true}) {
    OpenVector open({.format = AddressFormat::sockaddr_in, .symmetric = symmetric});
    AddressVector& vector = open.vector;
    PeerHeader& header = open.memory.header();
    for (int i = 0; i < 10; ++i) vector.insert(socket_of(i));
    for (const PeerId gone : {3, 5, 7}) vector.remove(gone);
    CHECK(vector.insert(socket_of(30)) == 3);
    CHECK(header.runs == (symmetric ? 1u : 0u));
    const std::size_t indexed = symmetric ? 1 : 8;
    CHECK(header.indexed == indexed);

    dies(header);
    PeerVacancies(open.memory).add(2);
    PeerVacancies(open.memory).take(5);
    PeerIndex(open.memory).insert(1234, 9);
    CHECK(vector.insert(socket_of(50)) == 5);
    CHECK(header.writing == 0);
    CHECK(vector.size() == 9);
    CHECK(header.indexed == indexed + 1);
    CHECK(vector.insert(socket_of(70)) == 7);
    CHECK(vector.insert(socket_of(100)) == 10);
    CHECK(header.live == 11);
    for (const int node : {0, 1, 2, 30, 4, 50, 6, 70, 8, 9, 100})
      CHECK(vector.lookup(find_socket(vector, socket_of(node))) == socket_of(node));
    CHECK(find_socket(vector, socket_of(3)) == kNoPeer);

    // Nothing is repaired that is in order.
    header.live = 777;
    vector.remove(10);
    CHECK(header.live == 776);
  }
}

TEST_CASE("an address that its writer did not get to count is not there") {
  for (const bool reject : {false, true}) {
    const AddressVectorOptions options{
        .format = AddressFormat::sockaddr_in, .symmetric = true, .reject_duplicates = reject};
    OpenVector open(options);
    AddressVector& vector = open.vector;
    PeerHeader& header = open.memory.header();
    for (int i = 0; i < 3; ++i) vector.insert(socket_of(i));
    ++header.run[0].count;
    header.writing = 1;
    char room[32];
    CHECK_FALSE(vector.contains(3));
    CHECK_THROWS_AS(vector.lookup(3), Error);
    CHECK_THROWS_AS(vector.lookup(3, room), Error);
    CHECK(find_socket(vector, socket_of(3)) == kNoPeer);
    CHECK(vector.insert(socket_of(3)) == 3);
    CHECK(vector.size() == 4);
    CHECK(vector.insert(socket_of(4)) == 4);
    for (int i = 0; i < 5; ++i) CHECK(vector.lookup(static_cast<PeerId>(i)) == socket_of(i));
  }
}

TEST_CASE("while the index is never at rest, entries are looked through") {
  OpenVector open({.reject_duplicates = true});
  AddressVector& vector = open.vector;
  for (int i = 0; i < 20; ++i) vector.insert(name_of(i));
  vector.remove(0);
  open.memory.header().index_version |= 1;
  CHECK(vector.find(part_of(19)) == 19);
  CHECK(vector.find(part_of(1)) == 1);
  CHECK(vector.find(part_of(0)) == kNoPeer);
  CHECK_THROWS_AS(vector.insert(name_of(19)), Error);
  CHECK(vector.insert(name_of(30)) == 0);
}

TEST_CASE("entries whose bytes make no sense stay, and are not found") {
  for (const bool rubbish : {true, false}) {
    OpenVector open;
    AddressVector& vector = open.vector;
    PeerHeader& header = open.memory.header();
    for (int i = 0; i < 5; ++i) vector.insert(name_of(i));
    PeerEntry& entry = *PeerColumn<PeerEntry, PeerSection::entries>(open.memory).find(2);
    const auto bytes = PeerRecords(open.memory).store(rubbish ? "rubbish" : "");
    entry.form = kFormTouched | bytes.form;
    entry.record = rubbish ? bytes.record : 0;
    CHECK(vector.find(part_of(2)) == kNoPeer);
    dies(header);
    CHECK(vector.insert(name_of(5)) == 5);
    CHECK(vector.size() == 6);
    CHECK(header.indexed == 5);
    CHECK(vector.find(part_of(2)) == kNoPeer);
    CHECK(vector.find(part_of(4)) == 4);
    if (!rubbish) CHECK_THROWS_AS(vector.lookup(2), Error);
  }
}

}  // namespace fab
