#pragma once

#include "fabric/session/pipe.h"
#include "providers/lnx/flows/flow_table.h"

// What links post to a session for reasons of their own, beside Control.
namespace fab::test {

// A put, a get, an update or a message whose frame says more than the words of a user: flags, `id`, and of a
// stripe `data`.
struct Marked {
  LinkOperation operation;
  Transfer transfer;

  Marked(const FrameHeader& marks, const Probe& like) : transfer(like.transfer) {
    operation.begin({.context = 77, .flags = completion_flag::kRma});
    operation.frame = marks;
    transfer.operation = &operation;
    transfer.flags |= transfer_flag::kMarked;
    if (marks.flags & frame_flag::kStriped) transfer.flags |= transfer_flag::kStored;
  }
  std::size_t post(Side& side) { return side.session.post({&transfer, 1}); }
  bool done() const { return operation.done(); }
  Errc error() const { return operation.completion().error; }
  std::uint64_t length() const { return operation.completion().length; }
  bool announced() const { return operation.announced; }
  void announced_before() { operation.announced = true; }
};

// The flows of a RailSide, which are there before its session.
struct RailFlows : virtual Receives {
  EventOutlet events;
  lnx::FlowTable flows{receives, events, 100, [] {}};
};

// A session that knows of rails. Once its stream has ended, it may come as another rail of the same flow.
struct RailSide : RailFlows, Side {
  explicit RailSide(Helpers have = {}) : Side(1, with(std::move(have), &flows)) {}
  // On which the peer's messages come; empty: none came.
  std::string message_link() const { return flows.message_link(peer); }
  const PeerId peer = peers.insert(Name{{{"test.0", 0, "peer"}}}.encode());

 private:
  static Helpers with(Helpers helpers, lnx::FlowTable* flows) {
    helpers.extensions = flows;
    return helpers;
  }
};

// The number of a stream on a rail, as a frame says it.
inline std::uint64_t rail_number(std::uint32_t slot, std::uint32_t incarnation) {
  return lnx::RailNumber{slot, incarnation}.packed();
}

}  // namespace fab::test
