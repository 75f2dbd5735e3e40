#include "fabric/context/inbox.h"

#include <sys/uio.h>

#include <span>
#include <string>

#include "fabric/memory/check_transfer.h"

namespace fab {

void Inbox::check_source(const Receive& receive) const {
  if (!rules_.shared_receives && (receive.rule.source == kNoPeer || !rules_.directed_receive))
    throw Error(Errc::not_supported_here,
                "a receive from any source was asked for, but the links share no receive queue "
                "(lnx_use_srq, FI_LNX_USE_SRQ); name the peer to receive from");
}

void Inbox::check_local(const Receive& receive) const {
  Transfer landing{};  // a receive needs its memory as a send does
  landing.op = OpCode::send;
  landing.length = receive.length;
  landing.piece_count = receive.piece_count;
  receive.piece_count ? void(landing.local_pieces = receive.pieces) : void(landing.local = receive.local);
  if (lacks_local(landing))
    throw Error(Errc::bounds, "the memory for " + std::to_string(receive.length) +
                                  " bytes to be received is at a null address; give the address of a buffer");
  if (rules_.exempt) return;
  const iovec whole{receive.piece_count ? nullptr : receive.local, static_cast<std::size_t>(receive.length)};
  rules_.memory->check_receive(receive.piece_count ? std::span(receive.pieces, receive.piece_count)
                                                   : std::span(&whole, 1));
}

void Inbox::check_open() const {
  if (closed_) throw Error(Errc::closed, "the endpoint is closed");
}

void Inbox::receive(const Receive& receive) {
  driver_.check_process();
  check_source(receive);
  check_local(receive);
  const Driver::Turn turn(driver_);
  check_open();
  receives_.post(receive);
}

bool Inbox::try_receive(const Receive& receive) {
  driver_.check_process();
  check_source(receive);
  check_local(receive);
  if (!driver_.try_lock()) return false;
  const Driver::Turn turn(driver_, std::adopt_lock);
  check_open();
  receives_.post(receive);
  return true;
}

bool Inbox::cancel(const Operation& operation) {
  driver_.check_process();
  const Driver::Turn turn(driver_);
  return receives_.cancel(operation);
}

bool Inbox::cancel_oldest(const std::function<bool(const Operation&)>& wanted) {
  driver_.check_process();
  const Driver::Turn turn(driver_);
  return receives_.cancel_oldest(wanted);
}

std::optional<Inbox::Waiting> Inbox::look(const MatchRule& rule, Look look) {
  driver_.check_process();
  Driver::Turn turn(driver_);
  check_open();
  turn.move();
  const Message* message = receives_.peek(rule);
  if (!message) return std::nullopt;
  Waiting found{message->head, message->sender->reported(), 0};
  if (look == Look::claim) found.claim = receives_.claim(rule);
  if (look == Look::discard) receives_.discard(rule);
  return found;
}

bool Inbox::receive_claimed(std::uint64_t claim, const Receive& receive) {
  driver_.check_process();
  check_local(receive);
  const Driver::Turn turn(driver_);
  return receives_.receive_claimed(claim, receive);
}

bool Inbox::discard_claimed(std::uint64_t claim) {
  driver_.check_process();
  const Driver::Turn turn(driver_);
  return receives_.discard_claimed(claim);
}

ReceiveQueue::Sizes Inbox::sizes() const {
  driver_.check_process();
  const Driver::Lock lock(driver_);
  return receives_.sizes();
}

LinkBook Inbox::link_counters() const {
  driver_.check_process();
  const Driver::Lock lock(driver_);
  return links_;
}

void Inbox::close() {
  driver_.assert_held();
  receives_.drop_all();
  closed_ = true;
}

}  // namespace fab
