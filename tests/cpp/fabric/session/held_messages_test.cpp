// What the messages of all peers of a context may hold while nobody receives them.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;

namespace {

// One context, and the streams of peers whose frames are made here.
struct Crowd {
  struct Peer {
    explicit Peer(Crowd& crowd)
        : session(
              {.segment = crowd.side.segment,
               .completions = crowd.side.completions,
               .receives = crowd.side.receives,
               .sender = std::make_shared<Sender>(crowd.side.peers, std::vector<Part>{{"test.0", 0, "peer"}}),
               .context_slot = 0,
               .counts = counts,
               .wake_domain = crowd.side.wake}) {}
    PathCounts counts;
    Session session;
  };
  Peer& add() { return *peers.emplace_back(std::make_unique<Peer>(*this)); }

  Side side{1};
  std::vector<std::unique_ptr<Peer>> peers;
};

Errc send(Crowd::Peer& peer, const FrameHeader& header) {
  std::string bytes(kHeaderBytes + header.length, 'x');
  encode(header, reinterpret_cast<std::byte*>(bytes.data()));
  for (std::size_t done = 0; done < bytes.size();) {
    iovec room;
    REQUIRE(peer.session.input(&room, 1) == 1);
    const std::size_t part = std::min(room.iov_len, bytes.size() - done);
    std::memcpy(room.iov_base, bytes.data() + done, part);
    done += part;
    if (const Errc error = peer.session.received(part); error != Errc::ok) return error;
  }
  return Errc::ok;
}

constexpr FrameHeader kSmall{.type = FrameType::message, .length = kMaxMessage, .total = kMaxMessage};
constexpr std::size_t kMostSmall = kMessageWindow / (kMaxMessage + kMessageOverhead);

FrameHeader announced(std::uint64_t number) {
  return {.type = FrameType::announce, .total = 100'000, .id = kStreamOnly | number};
}

}  // namespace

TEST_CASE("when all messages that wait are too many, peers that hold little go on, and others end") {
  Crowd crowd;
  Errc error = Errc::ok;
  std::size_t full = 0;
  for (; error == Errc::ok && full < 2000; ++full) {
    Crowd::Peer& peer = crowd.add();
    for (std::size_t i = 0; i < kMostSmall && error == Errc::ok; ++i) error = send(peer, kSmall);
  }
  CHECK(error == Errc::no_memory);
  CHECK(full > 200);
  CHECK(full < 300);
  CHECK(crowd.side.receives.held() < (257u << 20));
  Crowd::Peer& modest = crowd.add();
  CHECK(send(modest, kSmall) == Errc::ok);
  CHECK(send(modest, announced(1)) == Errc::ok);
  for (std::uint64_t number = 2; error = send(modest, announced(number)), error == Errc::ok; ++number)
    REQUIRE(number < 1000);
  CHECK(error == Errc::no_memory);
  crowd.side.receives.drop_all();
  CHECK(crowd.side.receives.held() == 0);
  CHECK(send(crowd.add(), kSmall) == Errc::ok);
}

TEST_CASE("what strangers left when they ended makes room for those who are there") {
  Crowd crowd;
  Crowd::Peer& known = crowd.add();
  crowd.side.peers.insert(Name{{{"test.0", 0, "known"}}}.encode());
  known.session.sender().also_named({"test.0", 0, "known"});
  for (std::size_t i = 0; i < kMostSmall; ++i) REQUIRE(send(known, kSmall) == Errc::ok);
  known.session.fail(Errc::peer_lost);
  for (std::size_t left = 0; left < 300; ++left) {
    Crowd::Peer& stranger = crowd.add();
    for (std::size_t i = 0; i < kMostSmall; ++i) REQUIRE(send(stranger, kSmall) == Errc::ok);
    stranger.session.fail(Errc::peer_lost);
  }
  CHECK(crowd.side.receives.held() < (257u << 20));
  Crowd::Peer& there = crowd.add();
  for (std::size_t i = 0; i < kMostSmall; ++i) REQUIRE(send(there, kSmall) == Errc::ok);
  crowd.side.receives.drop_stranded(0);
  CHECK(crowd.side.receives.sizes().unexpected == 2 * kMostSmall);  // of who is known, and of who is there
}

TEST_CASE("where announced messages lie is not noted by who cannot read there") {
  Crowd crowd;
  Crowd::Peer& peer = crowd.add();
  FrameHeader header = announced(1);
  header.length = kMaxAnnouncedPieces * kPieceBytes;
  std::string bytes(kHeaderBytes, '\0');
  header.total = kMaxAnnouncedPieces;
  encode(header, reinterpret_cast<std::byte*>(bytes.data()));
  for (std::size_t i = 0; i < kMaxAnnouncedPieces; ++i)
    bytes += std::string(8, '\0') + std::string("\1\0\0\0\0\0\0\0", 8);
  iovec room;
  REQUIRE(peer.session.input(&room, 1) == 1);
  REQUIRE(room.iov_len >= bytes.size());
  std::memcpy(room.iov_base, bytes.data(), bytes.size());
  REQUIRE(peer.session.received(bytes.size()) == Errc::ok);
  CHECK(crowd.side.receives.held() == sizeof(Message));
}
