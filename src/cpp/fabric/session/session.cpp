#include "fabric/session/session.h"

#include <new>
#include <utility>

#include "base/locks/tsan.h"
#include "base/memory/fault_guard.h"

namespace fab {
namespace {

using Lane = SessionOutput::Lane;

// The most answers that the requests which a peer may have outstanding can make.
constexpr std::size_t kMostWaitingAnswers = 2 * kMaxOutstanding + 64;
constexpr std::size_t kMostCopiedAnswers =
    kMaxOutstanding * (kHeaderBytes + kMaxCopiedAnswer) + kMaxResultBytes + 64 * 1024;

}  // namespace

Session::Session(Services services) : end_(std::move(services)) {
  arm_fault_guard();
  if (end_.services.extensions) end_.extension.move_in(end_.services.extensions->make(*this));
}

Session::~Session() { fail(Errc::peer_lost); }

std::size_t Session::post(std::span<const Transfer> batch) noexcept {
  std::size_t posted = 0;
  while (posted < batch.size()) {
    const Transfer& transfer = batch[posted];
    if (!initiator_.room_for(transfer)) break;
    std::size_t taken = 0;
    try {
      if (transfer.op != OpCode::send) {
        taken = initiator_.post(batch.subspan(posted));
      } else if (messenger_.post(transfer)) {
        ++end_.services.counts.posted;
        taken = 1;
      }
    } catch (const std::bad_alloc&) {
      taken = initiator_.refuse(transfer) ? 1 : 0;
    }
    if (taken == 0) break;
    posted += taken;
  }
  return posted;
}

std::size_t Session::output(iovec* out, std::size_t max) noexcept try {
  tsan_puts.release();
  return broken() ? 0 : end_.output.output(out, max);
} catch (const std::bad_alloc&) {
  end_.output.break_off();
  return 0;
}

void Session::sent(std::size_t bytes) noexcept {
  if (end_.services.slice) end_.services.slice->spend(bytes);
  end_.output.sent(bytes);
  initiator_.sent();
  messenger_.sent();
}

void Session::held() noexcept {
  end_.handover = Handover::at_once;
  initiator_.held();
  messenger_.sent();
}

Errc Session::received(std::size_t bytes) noexcept {
  const std::uint64_t frames = reader_.frames();
  Errc error = Errc::ok;
  try {
    tsan_stores.acquire();
    reader_.arrived(bytes);
    error = consume();
  } catch (const std::bad_alloc&) {
    end_.output.break_off();
  }
  if (end_.services.slice) end_.services.slice->spend(bytes, reader_.frames() - frames);
  messenger_.run_fetches();
  return error == Errc::ok && broken() ? Errc::no_memory : error;
}

Errc Session::consume() {
  while (!broken()) {
    switch (reader_.next()) {
      case Reader::Event::nothing:
        return Errc::ok;
      case Reader::Event::nonsense:
        return Errc::protocol;
      case Reader::Event::payload:
        on_payload();
        break;
      case Reader::Event::frame:
        if (const Errc error = on_frame(); error != Errc::ok) return error;
        break;
    }
  }
  return Errc::no_memory;
}

Errc Session::on_frame() {
  const FrameHeader& frame = reader_.frame();
  if (const Errc error = frame.type < FrameType::ack ? on_request() : on_answer(); error != Errc::ok)
    return error;
  const bool flooded =
      end_.output.waiting(Lane::answers) + end_.output.waiting_ranges() > kMostWaitingAnswers ||
      end_.output.copied(Lane::answers) > kMostCopiedAnswers;
  return flooded ? Errc::protocol : Errc::ok;  // more requests than a peer may have outstanding
}

Errc Session::on_request() {
  const FrameHeader& frame = reader_.frame();
  if (target_.in_put() && frame.type != FrameType::write) return Errc::protocol;
  if (end_.extension.is_stale(frame)) return Errc::protocol;
  switch (frame.type) {
    case FrameType::write:
      return target_.on_write(frame, reader_);
    case FrameType::read:
      target_.on_read(frame);
      return Errc::ok;
    case FrameType::rows:
      return target_.on_rows(frame, reader_.content());
    case FrameType::atomic:
    case FrameType::fetch:
    case FrameType::compare:
      target_.on_atomic(frame, reader_.content());
      return Errc::ok;
    case FrameType::notify:
      if (!end_.services.notices) return Errc::protocol;
      target_.on_notify(frame);
      return Errc::ok;
    case FrameType::message:
      return messenger_.on_message(frame, reader_.content());
    case FrameType::announce:
      return messenger_.on_announce(frame, reader_.content());
    case FrameType::pull:
      return messenger_.on_pull(frame);
    case FrameType::describe:
      target_.on_describe(frame);
      return Errc::ok;
    case FrameType::join:
    case FrameType::fence:
    case FrameType::settled:
      return end_.extension.on_request(frame, *this);
    case FrameType::probe:
      return Errc::ok;  // the payload of a probe is thrown away
    default:
      return Errc::protocol;
  }
}

Errc Session::on_answer() {
  const FrameHeader& frame = reader_.frame();
  switch (frame.type) {
    case FrameType::ack:
    case FrameType::fail: {
      const Errc error = frame.type == FrameType::ack ? initiator_.on_ack(frame) : initiator_.on_fail(frame);
      messenger_.answered();
      return error;
    }
    case FrameType::data:
      return initiator_.on_data(frame, reader_);
    case FrameType::release:
      return messenger_.on_release(frame);
    case FrameType::credit:
      return messenger_.on_credit(frame);
    case FrameType::ping:
      end_.answers.tell({.type = FrameType::pong});
      return Errc::ok;
    case FrameType::pong:
      return Errc::ok;
    default:
      return Errc::protocol;
  }
}

void Session::on_payload() {
  const FrameHeader& frame = reader_.frame();
  if (frame.type == FrameType::write) return target_.end_write(frame, reader_);
  if (frame.type == FrameType::probe) return target_.end_probe(frame);
  initiator_.end_data(frame, reader_);
  messenger_.answered();
}

void Session::forget(std::uint32_t region) noexcept {
  if (!end_.output.forget(region)) end_.output.break_off();
  target_.forget(region, reader_);
}

bool Session::output_fault() noexcept {
  const auto fault = end_.output.fault();
  if (fault == SessionOutput::Fault::request) initiator_.output_fault();
  return fault != SessionOutput::Fault::none;
}

void Session::fail(Errc error) noexcept {
  end_.failing = true;
  end_.output.clear();
  end_.answers.clear();
  target_.clear();
  reader_.clear();
  initiator_.fail(error);
  messenger_.fail(error);
  end_.extension.leave(error);
  end_.failing = false;
  end_.output.clear();
}

}  // namespace fab
