#include "fabric/session/frames/frame.h"

#include <doctest/doctest.h>

#include <cstring>
#include <list>
#include <random>

#include "fabric/session/pipe.h"
#include "fabric/types/peer_id.h"

using namespace fab;
using namespace fab::test;

namespace {

bool accepted(const FrameHeader& header) {
  std::byte bytes[sizeof(FrameHeader)];
  FrameHeader back;
  encode(header, bytes);
  return decode(bytes, back) && std::memcmp(&back, &header, sizeof back) == 0;
}

}  // namespace

TEST_CASE("headers have their documented bytes") {
  const FrameHeader header{.type = FrameType::write,
                           .flags = 3,
                           .atomic_op = 0,
                           .data_type = 0,
                           .length = 0x00020304,
                           .key = 0x1112131415161718,
                           .remote = 0x2122232425262728,
                           .total = 0x3132333435363738,
                           .data = 0x4142434445464748};
  std::byte bytes[48];
  encode(header, bytes);
  const unsigned char want[48] = {1,    3,    0,    0,    0x04, 0x03, 0x02, 0x00, 0x18, 0x17, 0x16, 0x15,
                                  0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
                                  0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 0x48, 0x47, 0x46, 0x45,
                                  0x44, 0x43, 0x42, 0x41, 0,    0,    0,    0,    0,    0,    0,    0};
  CHECK(std::memcmp(bytes, want, sizeof want) == 0);
  CHECK(accepted(header));
}

TEST_CASE("what no peer may send is refused") {
  CHECK_FALSE(accepted({.type = FrameType{0}}));
  CHECK_FALSE(accepted({.type = FrameType{21}}));
  CHECK(accepted({.type = FrameType::probe, .length = kMaxProbe, .total = kMaxProbe}));
  CHECK(accepted({.type = FrameType::probe}));
  CHECK_FALSE(accepted({.type = FrameType::probe, .length = kMaxProbe + 1}));
  CHECK_FALSE(accepted({.type = FrameType::probe, .total = kMaxProbe + 1}));
  CHECK_FALSE(accepted({.type = FrameType::probe, .flags = frame_flag::kLast}));
  CHECK(accepted({.type = FrameType::rows, .length = kRowBytes, .key = 3, .total = kMaxRowsBytes}));
  CHECK(accepted({.type = FrameType::rows, .length = kMaxRows * kRowBytes}));
  CHECK_FALSE(accepted({.type = FrameType::rows, .length = 0}));
  CHECK_FALSE(accepted({.type = FrameType::rows, .length = kRowBytes + 1}));
  CHECK_FALSE(accepted({.type = FrameType::rows, .length = (kMaxRows + 1) * kRowBytes}));
  CHECK_FALSE(accepted({.type = FrameType::rows, .length = kRowBytes, .total = kMaxRowsBytes + 1}));
  CHECK_FALSE(accepted({.type = FrameType::rows, .length = kRowBytes, .id = 1}));
  CHECK(accepted({.type = FrameType::describe, .key = 3, .total = kDescriptionBytes}));
  CHECK_FALSE(accepted({.type = FrameType::describe, .total = kDescriptionBytes + 1}));
  CHECK_FALSE(accepted({.type = FrameType{255}}));
  CHECK(accepted({.type = FrameType::ping}));
  CHECK_FALSE(accepted({.type = FrameType::ping, .flags = 8}));
  CHECK_FALSE(accepted({.type = FrameType::ping, .length = 1}));
  CHECK_FALSE(accepted({.type = FrameType::ping, .id = 1}));

  CHECK(accepted({.type = FrameType::write, .length = kMaxPayload, .total = kMaxPayload + 1}));
  CHECK_FALSE(accepted({.type = FrameType::write, .length = kMaxPayload + 1, .total = kMaxPayload + 1}));
  CHECK_FALSE(accepted({.type = FrameType::write, .length = 2, .total = 1}));
  CHECK_FALSE(accepted({.type = FrameType::write, .length = 0, .total = 1}));
  CHECK(accepted({.type = FrameType::write, .flags = frame_flag::kLast, .length = 0, .total = 0}));
  CHECK_FALSE(accepted({.type = FrameType::read, .length = 1, .total = 1}));
  CHECK_FALSE(accepted({.type = FrameType::read, .total = 1, .id = 1}));

  // Stripes lie within the whole.
  constexpr std::uint8_t kPart = frame_flag::kStripe | frame_flag::kLast;
  CHECK(accepted(
      {.type = FrameType::write, .flags = kPart, .length = 4, .remote = 6, .total = 4, .data = 6, .id = 10}));
  CHECK(accepted(
      {.type = FrameType::read, .flags = frame_flag::kStripe, .remote = 6, .total = 4, .data = 6, .id = 10}));
  CHECK_FALSE(accepted(
      {.type = FrameType::write, .flags = kPart, .length = 4, .remote = 7, .total = 4, .data = 7, .id = 10}));
  CHECK_FALSE(accepted(
      {.type = FrameType::write, .flags = kPart, .length = 4, .remote = 5, .total = 4, .data = 6, .id = 10}));
  CHECK_FALSE(
      accepted({.type = FrameType::read, .flags = frame_flag::kStripe, .total = ~0ull, .data = 8, .id = 4}));
  CHECK_FALSE(accepted({.type = FrameType::atomic, .flags = frame_flag::kStripe, .id = 4}));
  CHECK(accepted(
      {.type = FrameType::write, .flags = frame_flag::kStriped | frame_flag::kLast, .total = 9, .id = 1}));
  CHECK_FALSE(accepted({.type = FrameType::write, .flags = frame_flag::kStriped, .total = 9, .id = 1}));
  CHECK_FALSE(accepted({.type = FrameType::write,
                        .flags = frame_flag::kStriped | frame_flag::kLast,
                        .length = 1,
                        .total = 9,
                        .id = 1}));
  CHECK(accepted({.type = FrameType::join, .flags = frame_flag::kRejoin}));
  CHECK_FALSE(accepted({.type = FrameType::join, .length = 1}));
  CHECK_FALSE(accepted({.type = FrameType::fence, .flags = frame_flag::kRejoin}));
  CHECK_FALSE(accepted({.type = FrameType::fence, .id = 1}));
  CHECK_FALSE(accepted({.type = FrameType::settled, .length = 1}));

  CHECK(accepted({.type = FrameType::atomic, .atomic_op = 2, .data_type = 7, .length = 8, .total = 8}));
  CHECK_FALSE(accepted(
      {.type = FrameType::atomic, .atomic_op = kAtomicOps, .data_type = 7, .length = 8, .total = 8}));
  CHECK_FALSE(accepted(
      {.type = FrameType::atomic, .atomic_op = 2, .data_type = kDataTypes, .length = 8, .total = 8}));
  CHECK_FALSE(accepted({.type = FrameType::atomic, .atomic_op = 2, .data_type = 7, .length = 4, .total = 8}));
  CHECK_FALSE(accepted({.type = FrameType::fetch,
                        .atomic_op = 2,
                        .length = kMaxAtomicBytes + 8,
                        .total = kMaxAtomicBytes + 8}));
  CHECK(accepted(
      {.type = FrameType::fetch, .atomic_op = 10, .data_type = 7, .length = 0, .total = 8}));  // atomic_read
  CHECK(accepted({.type = FrameType::compare, .atomic_op = 12, .data_type = 7, .length = 16, .total = 8}));
  CHECK_FALSE(
      accepted({.type = FrameType::compare, .atomic_op = 12, .data_type = 7, .length = 8, .total = 8}));

  CHECK_FALSE(accepted({.type = FrameType::ack}));
  CHECK(accepted({.type = FrameType::ack, .total = 1}));
  CHECK_FALSE(accepted({.type = FrameType::fail}));
  CHECK(accepted({.type = FrameType::fail, .data = 129}));
  CHECK_FALSE(accepted({.type = FrameType::fail, .data = 1024}));
  CHECK_FALSE(accepted({.type = FrameType::data, .length = kMaxPayload + 1}));
}

TEST_CASE("a header has the flags and the numbers of its type, and no others") {
  using namespace frame_flag;
  using enum FrameType;
  constexpr std::uint8_t kUsual = kLast | kRemoteData | kCommit;
  enum class Id { never, maybe, always };
  struct Rule {
    FrameHeader least;  // of this type that is accepted
    std::uint8_t flags;
    Id id;
  };
  const auto sum = static_cast<std::uint8_t>(AtomicOp::sum);
  const auto swap = static_cast<std::uint8_t>(AtomicOp::cswap);
  const Rule rules[] = {
      {{.type = write, .length = 1, .total = 1}, kUsual, Id::maybe},
      {{.type = read}, kUsual, Id::never},  // but of stripes, which have tests of their own
      {{.type = atomic, .atomic_op = sum}, kUsual, Id::maybe},
      {{.type = fetch, .atomic_op = sum}, kUsual, Id::maybe},
      {{.type = compare, .atomic_op = swap}, kUsual, Id::maybe},
      {{.type = notify}, kUsual, Id::never},
      {{.type = message}, kRemoteData | kTagged | kAcknowledge, Id::maybe},
      {{.type = announce, .id = 1}, kRemoteData | kTagged | kAcknowledge, Id::always},
      {{.type = pull, .id = 1}, kUsual, Id::always},
      {{.type = join}, kRejoin, Id::never},
      {{.type = fence}, kUsual, Id::never},
      {{.type = settled}, kUsual, Id::maybe},
      {{.type = describe, .total = kDescriptionBytes}, kUsual, Id::never},
      {{.type = rows, .length = kRowBytes}, kUsual, Id::never},
      {{.type = probe}, 0, Id::never},
      {{.type = ack, .total = 1}, kUsual, Id::never},
      {{.type = fail, .data = 1}, kUsual, Id::never},
      {{.type = data}, kUsual, Id::never},
      {{.type = release, .id = 1}, kUsual, Id::always},
      {{.type = credit, .total = 1}, kUsual, Id::never},
      {{.type = ping}, kUsual, Id::never},
      {{.type = pong}, kUsual, Id::never},
  };
  for (const Rule& rule : rules) {
    CAPTURE(static_cast<int>(rule.least.type));
    CHECK(accepted(rule.least));
    for (unsigned bit = 0; bit < 8; ++bit) {
      const auto flag = static_cast<std::uint8_t>(1u << bit);
      if (flag == kStripe || flag == kStriped) {
        if (rule.least.type == write || rule.least.type == read) continue;
      }
      FrameHeader flagged = rule.least;
      flagged.flags = flag;
      CAPTURE(bit);
      CHECK(accepted(flagged) == ((rule.flags & flag) != 0));
    }
    FrameHeader numbered = rule.least;
    numbered.id = rule.least.id ? 0 : 1;
    CHECK(accepted(numbered) == (rule.id == Id::maybe));
  }
}

TEST_CASE("each length may be what is said of it, and not one more") {
  using enum FrameType;
  const auto sum = static_cast<std::uint8_t>(AtomicOp::sum);
  // Answers and what a peer is told bring no payload, but for data.
  for (const FrameHeader& bare :
       {FrameHeader{.type = ack, .total = 1}, FrameHeader{.type = fail, .data = 1},
        FrameHeader{.type = release, .id = 1}, FrameHeader{.type = credit, .total = 1},
        FrameHeader{.type = read}, FrameHeader{.type = describe, .total = kDescriptionBytes},
        FrameHeader{.type = join}, FrameHeader{.type = fence}, FrameHeader{.type = settled},
        FrameHeader{.type = pull, .id = 1}, FrameHeader{.type = notify}, FrameHeader{.type = ping},
        FrameHeader{.type = pong}}) {
    CAPTURE(static_cast<int>(bare.type));
    CHECK(accepted(bare));
    FrameHeader longer = bare;
    longer.length = 1;
    CHECK_FALSE(accepted(longer));
  }
  CHECK(accepted({.type = data, .length = kMaxPayload}));
  CHECK(accepted({.type = write, .length = kMaxPayload, .total = kMaxPayload}));
  CHECK(accepted({.type = message, .length = kMaxMessage, .remote = kMaxGroupId, .total = kMaxMessage}));
  CHECK_FALSE(accepted({.type = message, .length = kMaxMessage + 1, .total = kMaxMessage + 1}));
  CHECK_FALSE(accepted({.type = message, .length = 1, .total = 2}));
  CHECK_FALSE(accepted({.type = message, .remote = kMaxGroupId + 1}));
  CHECK(accepted({.type = message, .remote = 5ull << 32 | kMaxGroupId}));  // with its number
  constexpr std::uint32_t kPieces = kMaxAnnouncedPieces * kPieceBytes;
  CHECK(accepted({.type = announce, .length = kPieces, .remote = 5ull << 32 | kMaxGroupId, .id = 1}));
  CHECK_FALSE(accepted({.type = announce, .length = kPieces + kPieceBytes, .id = 1}));
  CHECK_FALSE(accepted({.type = announce, .length = kPieceBytes + 1, .id = 1}));
  CHECK_FALSE(accepted({.type = announce, .remote = kMaxGroupId + 1, .id = 1}));
  CHECK(accepted(
      {.type = atomic, .atomic_op = kAtomicOps - 1, .data_type = kDataTypes - 1, .length = 0, .total = 0}));
  CHECK(accepted({.type = atomic, .atomic_op = sum, .length = kMaxAtomicBytes, .total = kMaxAtomicBytes}));
  CHECK_FALSE(accepted(
      {.type = atomic, .atomic_op = sum, .length = kMaxAtomicBytes + 1, .total = kMaxAtomicBytes + 1}));
  CHECK_FALSE(accepted({.type = atomic, .atomic_op = sum, .length = 0, .total = 8}));
  CHECK_FALSE(accepted({.type = fetch,
                        .atomic_op = static_cast<std::uint8_t>(AtomicOp::atomic_read),
                        .length = 8,
                        .total = 8}));
  // Outcomes are small numbers that are no success; what is done with may be one.
  CHECK(accepted({.type = fail, .data = 1023}));
  CHECK_FALSE(accepted({.type = credit, .total = 0}));
  CHECK(accepted({.type = release, .data = 1023, .id = 1}));
  CHECK_FALSE(accepted({.type = release, .data = 1024, .id = 1}));
}

TEST_CASE("a stripe neither goes beyond the whole nor tells anybody") {
  using namespace frame_flag;
  const FrameHeader stripe{.type = FrameType::write,
                           .flags = kStripe | kLast,
                           .length = 4,
                           .remote = 6,
                           .total = 4,
                           .data = 6,
                           .id = 10};
  CHECK(accepted(stripe));
  FrameHeader other = stripe;
  other.flags |= kRemoteData;
  CHECK_FALSE(accepted(other));
  other = stripe;
  other.id = 9;
  CHECK_FALSE(accepted(other));
  (other = stripe).remote = 5;
  CHECK_FALSE(accepted(other));
  CHECK(accepted({.type = FrameType::read, .flags = kStripe, .remote = 7, .total = 0, .data = 7, .id = 7}));
  CHECK_FALSE(accepted({.type = FrameType::read, .flags = kStripe, .remote = 8, .data = 8, .id = 7}));
  CHECK_FALSE(accepted({.type = FrameType::write, .flags = kStripe | kStriped | kLast, .id = 1}));
  CHECK_FALSE(accepted({.type = FrameType::write, .flags = kStriped | kLast, .length = 1, .total = 1}));
}

TEST_CASE("what happens once is a change that has a number, and is no part of one") {
  using enum FrameType;
  for (unsigned type = 1; type < 40; ++type) {
    CAPTURE(type);
    const auto which = static_cast<FrameType>(type);
    const bool change =
        which == write || which == atomic || which == fetch || which == compare || which == message;
    CHECK(happens_once({.type = which, .id = 1}) == change);
    CHECK_FALSE(happens_once({.type = which}));
    CHECK_FALSE(happens_once({.type = which, .flags = frame_flag::kStripe, .id = 1}));
  }
}

TEST_CASE("answers that answer nothing, or wrongly, end the session") {
  std::vector<std::byte> memory(100'000), local(100'000);
  const auto verdict = [&](std::vector<FrameHeader> answers, std::size_t payload, int posts, bool sent) {
    Pipe pipe(1);
    const auto key = pipe.b.expose({piece(memory)});
    std::list<Probe> probes;
    for (int i = 0; i < posts; ++i)
      REQUIRE(probes.emplace_back(OpCode::read, key, 0, local.data(), 1000).post(pipe.a) == 1);
    while (sent && pipe.a.session.has_output()) pipe.send(pipe.a);
    for (const FrameHeader& answer : answers) {
      std::byte bytes[48];
      encode(answer, bytes);
      pipe.b.wire.append(reinterpret_cast<const char*>(bytes), sizeof bytes).append(payload, 'x');
    }
    Errc error = Errc::ok;
    while (error == Errc::ok && !pipe.b.wire.empty()) error = pipe.receive(pipe.b, pipe.a);
    const bool settled = !probes.empty() && probes.front().done();
    pipe.a.session.fail(Errc::protocol);
    for (const Probe& probe : probes) CHECK(probe.done());
    return std::pair(error, settled);
  };
  const FrameHeader ack{.type = FrameType::ack, .total = 1}, fail{.type = FrameType::fail, .data = 14};
  const FrameHeader data{.type = FrameType::data, .flags = frame_flag::kLast, .length = 1000};
  const FrameHeader much{.type = FrameType::data, .length = 1001},
      little{.type = FrameType::data, .flags = frame_flag::kLast, .length = 999};
  CHECK(verdict({data}, 1000, 1, true) == std::pair(Errc::ok, true));
  CHECK(verdict({fail}, 0, 1, true) == std::pair(Errc::ok, true));
  CHECK(verdict({ack}, 0, 1, true) == std::pair(Errc::protocol, false));  // a read wants data
  CHECK(verdict({much}, 1001, 1, true) == std::pair(Errc::protocol, false));
  CHECK(verdict({little}, 999, 1, true) == std::pair(Errc::protocol, false));
  CHECK(verdict({data}, 1000, 0, true).first == Errc::protocol);
  CHECK(verdict({fail}, 0, 0, true).first == Errc::protocol);
  CHECK(verdict({ack}, 0, 0, true).first == Errc::protocol);
  CHECK(verdict({data, data}, 1000, 1, true).first == Errc::protocol);
  CHECK(verdict({data}, 1000, 1, false) == std::pair(Errc::protocol, false));  // before it was asked
  CHECK(verdict({fail}, 0, 1, false) == std::pair(Errc::protocol, false));
}

TEST_CASE("the parts of a put belong together, and end where it ends") {
  std::vector<std::byte> memory(100);
  const auto verdict = [&](std::vector<FrameHeader> parts) {
    Pipe pipe(1);
    const std::uint64_t key = pipe.b.expose({piece(memory)});
    for (FrameHeader& part : parts) {
      part.type = FrameType::write;
      part.key = part.key ? part.key : key;
      std::byte bytes[48];
      encode(part, bytes);
      pipe.a.wire.append(reinterpret_cast<const char*>(bytes), sizeof bytes).append(part.length, 'x');
    }
    Errc error = Errc::ok;
    while (error == Errc::ok && !pipe.a.wire.empty()) error = pipe.receive(pipe.a, pipe.b);
    return error;
  };
  const FrameHeader first{.length = 10, .total = 20},
      last{.flags = frame_flag::kLast, .length = 10, .total = 20};
  CHECK(verdict({first, last}) == Errc::ok);
  FrameHeader other = last;
  other.key = 5;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).remote = 1;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).total = 21;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).data = 1;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).flags |= frame_flag::kRemoteData;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).length = 11;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).length = 9;
  CHECK(verdict({first, other}) == Errc::protocol);
  (other = last).flags = 0;
  CHECK(verdict({first, other}) == Errc::protocol);
}

TEST_CASE("a peer that does not fetch its answers is cut off before they pile up") {
  std::vector<std::byte> memory(100'000);
  for (const std::uint64_t length : {8u, 256u, 50'000u}) {
    CAPTURE(length);
    Errc error = Errc::ok;
    int frames = 0;
    Side target(3);
    const auto key = target.expose({piece(memory)});
    std::byte bytes[48];
    encode({.type = FrameType::read, .key = key, .remote = 0, .total = length}, bytes);
    for (; error == Errc::ok && frames < 400'000; ++frames) {
      iovec in[2];
      REQUIRE(target.session.input(in) == 1);
      std::memcpy(in[0].iov_base, bytes, sizeof bytes);
      error = target.session.received(sizeof bytes);
    }
    CHECK(error == Errc::protocol);
    CHECK(frames > static_cast<int>(kMaxOutstanding));  // an honest peer never gets there
  }
}

TEST_CASE("mutated streams end in an error or in answers, never in memory that is not theirs") {
  std::mt19937 random(99);
  std::vector<std::byte> memory(20'000, std::byte{0xEE}), local(20'000, std::byte{1}),
      result(kMaxAtomicBytes);
  // Honest streams to start from.
  std::string requests;
  constexpr std::uint64_t kKey = 0x1234567;
  {
    Pipe pipe(5);
    std::list<Probe> probes;
    for (int i = 0; i < 12; ++i) {
      constexpr OpCode kOps[] = {OpCode::write, OpCode::read, OpCode::atomic, OpCode::fetch_atomic,
                                 OpCode::compare_atomic};
      Probe& probe =
          probes.emplace_back(kOps[i % 5], kKey, 8u * random() % 1000, local.data(), 8 * (1 + random() % 40));
      probe.transfer.atomic = kOps[i % 5] == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
      probe.transfer.type = DataType::u64;
      probe.transfer.compare = local.data();
      if (i % 5 >= 3) probe.transfer.result = result.data();
      REQUIRE(probe.post(pipe.a) == 1);
    }
    while (pipe.a.session.has_output()) pipe.send(pipe.a);
    requests = pipe.a.wire;
    pipe.a.session.fail(Errc::peer_lost);
  }
  Side target(9);
  target.regions.insert({.key = kKey,
                         .base = 0,
                         .buffers = std::vector<iovec>{piece(memory, 64, memory.size() - 128)},
                         .access = access::kAll,
                         .flags = 0,
                         .file = -1,
                         .file_offset = 0,
                         .enabled = true});
  int ended = 0, went_on = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string stream = requests;
    for (auto changes = 1 + random() % 6; changes; --changes) {
      const std::size_t at = random() % stream.size();
      switch (random() % 4) {
        case 0:
          stream[at] = static_cast<char>(random());
          break;
        case 1:
          stream[at] = static_cast<char>(stream[at] ^ (1 << random() % 8));
          break;
        case 2:
          stream.erase(at, random() % 64);
          break;
        default:
          stream.insert(at, std::string(random() % 64, static_cast<char>(random())));
      }
      if (stream.empty()) stream = requests;
    }
    PathCounts counts;
    CompletionQueue queue(16, CompletionQueue::WhenFull::forget_oldest);
    Session session(
        {.segment = target.segment,
         .completions = queue,
         .receives = target.receives,
         .sender = std::make_shared<Sender>(target.peers, std::vector<Part>{{"test.0", 0, "peer"}}),
         .context_slot = 0,
         .counts = counts,
         .wake_domain = target.wake});
    std::size_t done = 0;
    Errc error = Errc::ok;
    while (done < stream.size() && error == Errc::ok) {
      iovec in[2];
      const std::size_t count = session.input(in);
      std::size_t got = 0;
      for (std::size_t i = 0; i < count && done < stream.size(); ++i) {
        const std::size_t part =
            std::min({in[i].iov_len, stream.size() - done, std::size_t{1} + random() % 3000});
        std::memcpy(in[i].iov_base, stream.data() + done, part);
        done += part;
        got += part;
        if (part < in[i].iov_len) break;
      }
      error = session.received(got);
      session.end_turn();
      iovec out[16];
      if (session.output(out, 16) != 0) session.sent(1 + random() % out[0].iov_len);
    }
    ++(error == Errc::ok ? went_on : ended);
    CHECK((error == Errc::ok || error == Errc::protocol));
  }
  CHECK(ended > 1000);
  CHECK(went_on > 1000);
  CHECK(std::count(memory.begin(), memory.begin() + 64, std::byte{0xEE}) == 64);
  CHECK(std::count(memory.end() - 64, memory.end(), std::byte{0xEE}) == 64);
}
