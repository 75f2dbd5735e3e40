#include <algorithm>
#include <utility>

#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "providers/verbs/direct.h"
#include "providers/verbs/endpoint.h"

// The part of Direct that learns of the peer's regions, and chooses the way of a transfer.
namespace fab::verbs {
namespace {

// The peer is asked for a region at its second use, or at its first if that has so many bytes.
constexpr std::uint64_t kAskAt = 8 * 1024;
constexpr std::uint64_t kWaitAt = 32 * 1024;   // bytes from which a transfer waits until its region is known
constexpr std::size_t kMostKnown = 64 * 1024;  // regions
constexpr std::chrono::milliseconds kAskAgain{20};  // for a region that the peer is registering
// For one that only messages reach, because its device may take it later. So many uses of it make one look at
// the clock.
constexpr std::chrono::seconds kAskAnew{10};
constexpr unsigned kLooks = 64;

// Whether devices can do the update: additions, and compare-and-swaps, of one 8-byte integer.
bool native(const Transfer& transfer) noexcept {
  if (transfer.length != 8 || transfer.piece_count > 1) return false;
  if (transfer.type != DataType::i64 && transfer.type != DataType::u64) return false;
  if (transfer.op == OpCode::compare_atomic) return transfer.atomic == AtomicOp::cswap;
  return transfer.atomic == AtomicOp::sum ||
         (transfer.op == OpCode::fetch_atomic && transfer.atomic == AtomicOp::atomic_read);
}

// Whether the device knows the local memory of all pieces.
bool knows_pieces(const Transfer& transfer, DeviceRegions& regions) noexcept {
  const bool stores = transfer.op == OpCode::read;
  return std::all_of(transfer.local_pieces, transfer.local_pieces + transfer.piece_count,
                     [&](const iovec& piece) {
                       return piece.iov_len == 0 || regions.local_key(piece.iov_base, piece.iov_len, stores);
                     });
}

}  // namespace

void Direct::ask(std::uint64_t key, Known& known) {
  Session* const session = services_.session();
  if (!session) return;
  auto question = std::make_shared<Question>();
  question->asker = this;
  question->key = key;
  question->frame = {.type = FrameType::describe, .key = key, .total = kDescriptionBytes};
  question->begin({.hook = [](Operation& done) noexcept {
    auto& answered = static_cast<Question&>(done);
    answered.asker->on_answer(answered);
  }});
  Transfer transfer{};
  transfer.operation = question.get();
  transfer.local = question->answer;
  transfer.length = kDescriptionBytes;
  transfer.op = OpCode::control;
  transfer.delivery = Delivery::delivery;
  questions_.push_back(std::move(question));
  known.state = Known::State::asked;
  // If the session is full, the next transfer asks again.
  if (session->post({&transfer, 1}) == 0) {
    questions_.pop_back();
    known.state = Known::State::seen;
    return;
  }
  services_.on_posted();
}

// Messages reach the region, so nothing waits for what the peer says of its device by now.
void Direct::ask_meanwhile(std::uint64_t key, Known& known) noexcept try {
  if (known.state != Known::State::asked && ++known.uses % kLooks == 0 && known.ask_again.passed())
    ask(key, known);
} catch (const std::exception&) {
  return;  // a later use asks
}

void Direct::on_answer(Question& question) noexcept {
  const Errc error = question.completion().error;
  ++signs_;
  const auto found = std::ranges::find(questions_, &question, [](const auto& owned) { return owned.get(); });
  if (found == questions_.end()) return;
  if (const auto known = known_.find(question.key); known != known_.end()) {
    learn(known->second, error, question.answer);
    const bool preparing = known->second.state == Known::State::preparing;
    known->second.ask_again = preparing ? Deadline::in(kAskAgain) : Deadline::in(kAskAnew);
  }
  endpoint_.destroy_later(std::move(*found));
  questions_.erase(found);
  services_.on_waiting();
}

void Direct::learn(Known& known, Errc error, const std::byte* answer) noexcept try {
  const auto told = error == Errc::ok ? Description::decode(answer) : std::nullopt;
  if (told) known.description = std::make_shared<const Description>(*told);
  known.state = told                          ? Known::State::told
                : error == Errc::key_rejected ? Known::State::unknown
                : error == Errc::again        ? Known::State::preparing
                                              : Known::State::seen;
  known.by_messages = known.state == Known::State::seen && error != Errc::no_memory;
} catch (const std::exception&) {
  known.state = Known::State::seen;  // the next use asks again
  known.by_messages = false;
}

std::pair<Direct::Known*, bool> Direct::find(std::uint64_t key) {
  if (known_.size() >= kMostKnown) forget_all();
  const auto [found, first] = known_.try_emplace(key);
  recent_ = {key, &found->second};
  return {recent_.second, first};
}

void Direct::forget_all() noexcept {
  known_.clear();
  recent_ = {};
}

// Returns `later` if the region is not known yet and the transfer is worth waiting for that.
Direct::Choice Direct::choose(const Transfer& transfer, bool staged) {
  if (failed_ || by_messages() || transfer.length == 0 || transfer.delivery == Delivery::commit)
    return {Way::session};
  if ((transfer.flags & (transfer_flag::kRemoteData | transfer_flag::kStored)) != 0) return {Way::session};
  const bool atomic = is_atomic(transfer.op);
  const bool iwarp = endpoint_.shared().device.iwarp();
  if (atomic  ? !native(transfer) || !endpoint_.shared().atomics
      : iwarp ? transfer.op != OpCode::read || !sinks_ || (!staged && transfer.piece_count > 1)
              : transfer.op != OpCode::read && transfer.op != OpCode::write)
    return {Way::session};
  // For an update in one buffer, native() has made the other checks.
  if (atomic && transfer.piece_count == 0 ? lacks_local(transfer) || hides_local(transfer)
                                          : check_transfer(transfer) != Errc::ok)
    return {Way::session};

  const auto [there, first] = look_up(transfer.key);
  Known& known = *there;
  if (known.by_messages) {
    ask_meanwhile(transfer.key, known);
    return {Way::session};
  }
  // The peer may open such a region later, so the next use asks again.
  if (known.state == Known::State::unknown) {
    known.state = Known::State::seen;
    return {Way::session};
  }
  const bool only_devices = atomic || known.hidden || hides_local(transfer);
  if (known.state == Known::State::preparing) {
    if (!known.ask_again.passed()) {
      if (!only_devices) return {Way::session};
      services_.on_pause();
      return {Way::later};
    }
    known.state = Known::State::seen;
  }
  const bool waits = only_devices || transfer.length >= kWaitAt;
  if (known.state == Known::State::seen && (!first || waits || transfer.length >= kAskAt))
    ask(transfer.key, known);
  if (known.state != Known::State::told) return {waits ? Way::later : Way::session};

  const Description& region = *known.description;
  const std::uint32_t needed = transfer.op == OpCode::read ? access::kRemoteRead : access::kRemoteWrite;
  const Whole whole(transfer);
  const std::uint64_t offset = transfer.remote - region.base - whole.before;
  if ((region.access & needed) == 0 || transfer.remote < region.base ||
      transfer.remote - region.base < whole.before || offset > region.length() ||
      whole.length > region.length() - offset)
    return {Way::session};  // the peer refuses it and tells why
  if (atomic) {
    const Description::Place place = region.at(offset);
    if (!region.atomics || place.address % 8 != 0 || place.left < 8) return {Way::session};
  }
  if (!connected()) return {rests() || !waits ? Way::session : Way::later};
  if (!staged && transfer.piece_count > 1 && !knows_pieces(transfer, endpoint_.shared().regions))
    return {Way::session};
  return {Way::devices, &known.description};
}

}  // namespace fab::verbs
