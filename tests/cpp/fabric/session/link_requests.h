#pragma once

#include <memory>

#include "fabric/session/flow.h"
#include "fabric/session/pipe.h"

// What links post to a session for reasons of their own. Everything that tests of sessions know of how that
// is said stands here.
namespace fab::test {

// A request that is all in its frame; its answer goes to `answer`.
struct Control : Probe {
  explicit Control(const FrameHeader& frame, std::byte* answer = nullptr, std::uint64_t length = 0)
      : Probe(op_of(frame.type), frame.key, frame.remote, answer, length) {
    transfer.data = frame.data;
    if (frame.flags & frame_flag::kRejoin) transfer.flags |= transfer_flag::kRejoin;
    if (frame.type == FrameType::settled) {
      transfer.data = frame.total;
      transfer.remote = frame.id;
    }
    if (frame.type == FrameType::probe) {
      transfer.length = frame.length;
      transfer.remote = frame.total;
    }
  }

 private:
  static OpCode op_of(FrameType type) {
    switch (type) {
      case FrameType::join:
        return OpCode::join;
      case FrameType::fence:
        return OpCode::fence;
      case FrameType::settled:
        return OpCode::settled;
      case FrameType::probe:
        return OpCode::probe;
      default:
        return OpCode::describe;
    }
  }
};

// A put, a get, an update or a message whose frame says more than the words of a user: flags, `id`, and of a
// stripe `data`.
struct Marked {
  FlowOperation operation;
  Transfer transfer;

  Marked(const FrameHeader& marks, const Probe& like) : transfer(like.transfer) {
    operation.begin(1, 77, completion_flag::kRma, nullptr, nullptr, nullptr);
    transfer.operation = &operation;
    if (marks.flags & frame_flag::kStripe) {
      operation.whole = marks.id;
      operation.offset = marks.data;
      transfer.flags |= transfer_flag::kStripe;
    } else {
      operation.number = marks.id;
      transfer.flags |= transfer_flag::kNumbered;
    }
    if (marks.flags & frame_flag::kStriped) transfer.flags |= transfer_flag::kStriped;
  }
  std::size_t post(Side& side) { return side.session.post({&transfer, 1}); }
  bool done() const { return operation.done(); }
  Errc error() const { return operation.completion().error; }
  std::uint64_t length() const { return operation.completion().length; }
  bool announced() const { return operation.announced; }
  void announced_before() { operation.announced = true; }
};

// A session that knows of rails. Once its stream has ended, it may come as another rail of the same flow.
struct RailSide : Side {
  explicit RailSide(Helpers have = {}) : Side(1, with(std::move(have), &flows)) {}
  ~RailSide() { session.fail(Errc::peer_lost); }
  // On which the peer's messages come; empty: none came.
  std::string message_link() const { return flows.message_link(peer); }
  FlowTable flows{receives, 100, [] {}};
  const PeerId peer = peers.insert(Name{{{"test.0", 0, "peer"}}}.encode());

 private:
  static Helpers with(Helpers helpers, FlowTable* flows) {
    helpers.flows = flows;
    return helpers;
  }
};

// The number of a stream on a rail, as a frame says it.
inline std::uint64_t rail_number(std::uint32_t slot, std::uint32_t incarnation) {
  return RailNumber{slot, incarnation}.packed();
}

}  // namespace fab::test
