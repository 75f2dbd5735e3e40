#include "fabric/session/frames/answers.h"

#include "fabric/session/frames/output_wire.h"

using namespace fab;
using namespace fab::test;

namespace {

struct Told : Out {
  Answers answers{output};

  std::vector<Frame> frames() {
    send_all();
    return Out::frames();
  }
};

}  // namespace

TEST_CASE("successes that follow each other are one ack, when they are told") {
  Told told;
  told.answers.flush();  // of nothing
  CHECK(told.output.empty());
  for (int i = 0; i < 3; ++i) told.answers.give(Errc::ok, FrameType::write);
  CHECK(told.output.empty());
  told.answers.flush();
  told.answers.flush();
  const auto frames = told.frames();
  REQUIRE(frames.size() == 1);
  CHECK(frames[0].header.type == FrameType::ack);
  CHECK(frames[0].header.total == 3);
}

TEST_CASE("another answer comes behind the successes before it") {
  Told told;
  told.answers.give(Errc::ok, FrameType::write);
  told.answers.give(Errc::bounds, FrameType::write);
  told.answers.give(Errc::ok, FrameType::write);
  const auto content = counted_bytes(5);
  told.answers.give(content);
  told.answers.give(Errc::ok, FrameType::write);
  std::memset(told.answers.room(3), 'x', 3);
  told.answers.tell({.type = FrameType::pong});
  told.answers.give(Errc::ok, FrameType::write);
  told.answers.tell({.type = FrameType::ping});  // is no answer, and may come before one
  told.answers.flush();
  const auto frames = told.frames();
  const std::vector<FrameType> expected = {FrameType::ack,  FrameType::fail, FrameType::ack,
                                           FrameType::data, FrameType::ack,  FrameType::data,
                                           FrameType::pong, FrameType::ping, FrameType::ack};
  REQUIRE(frames.size() == expected.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    CHECK(frames[i].header.type == expected[i]);
    if (expected[i] == FrameType::ack) CHECK(frames[i].header.total == 1);
    if (expected[i] == FrameType::data) CHECK(frames[i].header.flags == frame_flag::kLast);
  }
  CHECK(frames[1].header.data == static_cast<std::uint64_t>(Errc::bounds));
  CHECK(frames[3].payload == content);
  CHECK(frames[5].payload == std::vector(3, std::byte{'x'}));
}

TEST_CASE("successes can wait while they are few and of messages alone") {
  Told told;
  CHECK_FALSE(told.answers.can_wait());  // there is nothing
  for (int i = 1; i <= 40; ++i) {
    told.answers.give(Errc::ok, FrameType::message);
    CHECK(told.answers.can_wait() == (i < 32));
  }
  told.answers.flush();
  CHECK_FALSE(told.answers.can_wait());
  told.answers.give(Errc::ok, FrameType::message);
  CHECK(told.answers.can_wait());
  told.answers.give(Errc::ok, FrameType::write);
  CHECK_FALSE(told.answers.can_wait());
  told.answers.give(Errc::ok, FrameType::message);
  CHECK_FALSE(told.answers.can_wait());
  told.answers.flush();
  told.answers.give(Errc::ok, FrameType::message);  // the request is told by now
  CHECK(told.answers.can_wait());
}

TEST_CASE("nothing is left of answers to a stream that has ended") {
  Told told;
  told.answers.give(Errc::ok, FrameType::write);
  told.answers.clear();
  told.answers.flush();
  CHECK(told.output.empty());
  told.answers.give(Errc::ok, FrameType::message);
  CHECK(told.answers.can_wait());
}
