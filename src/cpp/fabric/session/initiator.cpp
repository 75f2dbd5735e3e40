// The initiator's side of a Session: requests out, answers in.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes/wire.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/session.h"

namespace fab {
namespace {

constexpr std::size_t kMostCopied = 1 << 20;      // bytes of requests that wait
constexpr std::size_t kCopy = 256;                // longer payloads are sent from where they lie,
constexpr std::size_t kCopyPieces = 16 * 1024;    // unless they lie in many pieces
constexpr std::size_t kCopyInject = 64 * 1024;    // or the caller wants the buffer back
constexpr std::uint64_t kLongestRow = 64 * 1024;  // of a get that shares a request with others

bool wants_data(OpCode op) noexcept {
  return op == OpCode::read || op == OpCode::fetch_atomic || op == OpCode::compare_atomic ||
         op == OpCode::receive || op == OpCode::describe;
}

// How many gets at the front of `batch` go as one request.
std::size_t rows_at_front(std::span<const Transfer> batch) noexcept {
  std::size_t rows = 0;
  std::uint64_t total = 0;
  for (const Transfer& transfer : batch.first(std::min(batch.size(), kMaxRows))) {
    if (transfer.op != OpCode::read || transfer.key != batch.front().key || transfer.piece_count != 0 ||
        (transfer.flags & ~transfer_flag::kPastCaches) != 0 || transfer.length > kLongestRow ||
        transfer.length > kMaxRowsBytes - total || check_copied(transfer) != Errc::ok)
      break;
    total += transfer.length;
    ++rows;
  }
  return rows;
}

// What a transfer of a flow says of itself.
void mark_part(const Transfer& transfer, FrameHeader& header) noexcept {
  constexpr auto kOfFlows = transfer_flag::kNumbered | transfer_flag::kStripe;
  if (!(transfer.flags & kOfFlows)) return;
  const auto& part = static_cast<const FlowOperation&>(*transfer.operation);
  header.id = part.number;
  if (transfer.flags & transfer_flag::kStriped) header.flags |= frame_flag::kStriped | frame_flag::kLast;
  if (!(transfer.flags & transfer_flag::kStripe)) return;
  header.flags |= frame_flag::kStripe;
  header.id = part.whole;
  header.data = part.offset;
}

}  // namespace

// What the operation waits for, in terms of the stream.
Delivery Session::level_of(const Transfer& transfer) const noexcept {
  if (wants_data(transfer.op)) return Delivery::delivery;
  const bool answered = transfer.delivery == Delivery::transmit && handover_ == Handover::when_answered;
  return answered ? Delivery::delivery : transfer.delivery;
}

std::size_t Session::outstanding() const noexcept { return requests_.size() + again_.size(); }

std::size_t Session::post(std::span<const Transfer> batch) noexcept {
  std::size_t posted = 0;
  while (posted < batch.size()) {
    const Transfer& transfer = batch[posted];
    const bool fetches = is_atomic(transfer.op) && wants_data(transfer.op);
    if (broken_ || requests_.size() + asked_rows_ >= kMaxOutstanding ||
        output_.copied(Lane::requests) >= kMostCopied ||
        (fetches && result_bytes_ + kMaxAtomicBytes > kMaxResultBytes))
      break;
    std::size_t taken = 0;
    try {
      taken = post_front(batch.subspan(posted));
    } catch (const std::bad_alloc&) {
      taken = refuse(transfer) ? 1 : 0;
    }
    if (taken == 0) break;
    posted += taken;
  }
  return posted;
}

// A transfer for which there is no memory; false: it may be tried again, as others have yet to be answered.
bool Session::refuse(const Transfer& transfer) noexcept {
  if (!requests_.empty()) return false;
  ++services_.counts.posted;
  settle({.operation = transfer.operation, .op = transfer.op}, Errc::no_memory);
  return true;
}

// Takes what the batch begins with; returns how many transfers that is, 0 if there is no room.
std::size_t Session::post_front(std::span<const Transfer> batch) {
  const Transfer& transfer = batch.front();
  requests_.reserve(requests_.size() + 1);
  if (transfer.op == OpCode::send) {
    if (!post_message(transfer)) return 0;
    ++services_.counts.posted;
    return 1;
  }
  if (const std::size_t rows = rows_at_front(batch); rows > 1) {
    post_rows(batch.first(rows));
    return rows;
  }
  Request request{.operation = transfer.operation,
                  .op = transfer.op,
                  .delivery = level_of(transfer),
                  .error = check_copied(transfer),
                  .length = transfer.length};
  if (request.delivery <= Delivery::transmit) {
    request.context = transfer.operation->completion().context;
    request.flags = transfer.operation->late_flags();
  }
  request.local = request.error != Errc::ok;
  if (!request.local) post_request(transfer, request);
  ++services_.counts.posted;
  if (request.local && requests_.empty()) {
    settle(request, request.error);
    return 1;
  }
  request.end = output_.requests_queued();
  requests_.push_back(std::move(request));
  return 1;
}

// Queues the frames of a request.
void Session::post_request(const Transfer& transfer, Request& request) {
  switch (transfer.op) {
    case OpCode::write:
      return post_write(transfer, request);
    case OpCode::read: {
      FrameHeader header{
          .type = FrameType::read, .key = transfer.key, .remote = transfer.remote, .total = transfer.length};
      mark_part(transfer, header);
      output_.append_header(Lane::requests, header);
      request.landing = local_of(transfer);
      return;
    }
    case OpCode::describe:
      output_.append_header(Lane::requests,
                            {.type = FrameType::describe, .key = transfer.key, .total = kDescriptionBytes});
      request.landing = local_of(transfer);
      return;
    case OpCode::probe:
      request.length = transfer.remote;
      output_.append_header(Lane::requests, {.type = FrameType::probe,
                                             .length = static_cast<std::uint32_t>(transfer.length),
                                             .total = transfer.remote});
      if (transfer.length != 0) output_.zeros(transfer.length);
      return;
    case OpCode::settled:
      return output_.append_header(
          Lane::requests, {.type = FrameType::settled, .total = transfer.data, .id = transfer.remote});
    case OpCode::join:
    case OpCode::fence: {
      const bool joins = transfer.op == OpCode::join;
      output_.append_header(
          Lane::requests,
          {.type = joins ? FrameType::join : FrameType::fence,
           .flags = transfer.flags & transfer_flag::kRejoin ? frame_flag::kRejoin : std::uint8_t{0},
           .key = transfer.key,
           .remote = transfer.remote,
           .data = transfer.data});
      joined_ |= joins;
      return;
    }
    default:
      return post_atomic(transfer, request);
  }
}

void Session::post_rows(std::span<const Transfer> run) {
  auto rows = std::make_unique<Rows>();
  rows->key = run.front().key;
  rows->rows.reserve(run.size());
  rows->places.reserve(run.size());
  std::byte* at = output_.append(Lane::requests, kHeaderBytes + run.size() * kRowBytes);
  std::byte* row = at + kHeaderBytes;
  std::uint64_t total = 0;
  for (const Transfer& transfer : run) {
    const std::uint64_t range[] = {to_little(transfer.remote), to_little(transfer.length)};
    static_assert(sizeof range == kRowBytes);
    std::memcpy(row, range, sizeof range);
    row += sizeof range;
    total += transfer.length;
    rows->rows.push_back({transfer.operation, transfer.remote});
    rows->places.push_back({transfer.local, static_cast<std::size_t>(transfer.length)});
  }
  encode({.type = FrameType::rows,
          .length = static_cast<std::uint32_t>(run.size() * kRowBytes),
          .key = rows->key,
          .total = total},
         at);
  Request request{
      .op = OpCode::read, .delivery = Delivery::delivery, .length = total, .end = output_.requests_queued()};
  request.landing = PieceCursor(rows->places.data(), rows->places.size());
  request.rows = std::move(rows);
  requests_.push_back(std::move(request));
  services_.counts.posted += run.size();
  asked_rows_ += run.size();
}

// One range out of bounds, or one landing place that is not there, is no reason for the others to fail: then
// each is asked for by itself.
void Session::settle_rows(const Request& request, Errc error) noexcept {
  PathCounts& counts = services_.counts;
  bool again = error == Errc::bounds && !failing_;
  try {
    if (again) again_.reserve(again_.size() + request.rows->rows.size());
  } catch (const std::bad_alloc&) {
    again = false;
    error = Errc::no_memory;  // whichever of them is out of bounds
  }
  asked_rows_ -= request.rows->rows.size();
  for (std::size_t i = 0; i < request.rows->rows.size(); ++i) {
    const Row& row = request.rows->rows[i];
    const iovec& place = request.rows->places[i];
    if (again) {
      Transfer transfer{};
      transfer.operation = row.operation;
      transfer.local = static_cast<std::byte*>(place.iov_base);
      transfer.remote = row.remote;
      transfer.key = request.rows->key;
      transfer.length = place.iov_len;
      again_.push_back(transfer);
      continue;
    }
    ++counts.settled;
    error == Errc::ok ? counts.bytes_in += place.iov_len : ++counts.errors;
    row.operation->settle(error, error == Errc::ok ? place.iov_len : 0);
  }
}

void Session::read_again() {
  for (; !again_.empty() && requests_.size() + asked_rows_ < kMaxOutstanding; again_.pop_front()) {
    const Transfer& row = again_.front();
    requests_.reserve(requests_.size() + 1);
    output_.append_header(
        Lane::requests, {.type = FrameType::read, .key = row.key, .remote = row.remote, .total = row.length});
    requests_.push_back({.operation = row.operation,
                         .op = OpCode::read,
                         .delivery = Delivery::delivery,
                         .length = row.length,
                         .end = output_.requests_queued(),
                         .landing = local_of(row)});
  }
}

void Session::post_write(const Transfer& transfer, Request& request) {
  const bool data = transfer.flags & transfer_flag::kRemoteData,
             durable = transfer.delivery == Delivery::commit;
  FrameHeader header{
      .type = FrameType::write,
      .flags = static_cast<std::uint8_t>((data ? frame_flag::kRemoteData : 0) |
                                         (durable ? frame_flag::kCommit : 0)),
      .length = static_cast<std::uint32_t>(std::min<std::uint64_t>(transfer.length, kMaxPayload)),
      .key = transfer.key,
      .remote = transfer.remote,
      .total = transfer.length,
      .data = data ? transfer.data : 0};
  if (header.length == header.total) header.flags |= frame_flag::kLast;
  mark_part(transfer, header);
  if (header.flags & frame_flag::kStriped) {
    header.length = 0;
    request.length = 0;  // its bytes went as stripes
    return output_.append_header(Lane::requests, header);
  }
  const std::size_t copied = transfer.delivery == Delivery::inject ? kCopyInject
                             : transfer.piece_count > 1            ? kCopyPieces
                                                                   : kCopy;
  if (transfer.length > copied) {
    output_.append_header(Lane::requests, header);
    output_.user_payload(header, local_of(transfer));
    return;
  }
  std::byte* at = output_.append(Lane::requests, kHeaderBytes + transfer.length);
  encode(header, at);
  gather(local_of(transfer), at + kHeaderBytes, transfer.length);
  if (transfer.delivery == Delivery::inject)
    std::exchange(request.operation, nullptr)->settle(Errc::ok, transfer.length);
}

void Session::post_atomic(const Transfer& transfer, Request& request) {
  const bool compares = transfer.op == OpCode::compare_atomic;
  const std::size_t operand = transfer.atomic == AtomicOp::atomic_read ? 0 : transfer.length;
  const std::size_t length = operand + (compares ? transfer.length : 0);
  const FrameType type = compares                              ? FrameType::compare
                         : transfer.op == OpCode::fetch_atomic ? FrameType::fetch
                                                               : FrameType::atomic;
  std::byte* at = output_.append(Lane::requests, kHeaderBytes + length);
  FrameHeader header{.type = type,
                     .flags = transfer.delivery == Delivery::commit ? frame_flag::kCommit : std::uint8_t{0},
                     .atomic_op = static_cast<std::uint8_t>(transfer.atomic),
                     .data_type = static_cast<std::uint8_t>(transfer.type),
                     .length = static_cast<std::uint32_t>(length),
                     .key = transfer.key,
                     .remote = transfer.remote,
                     .total = transfer.length};
  mark_part(transfer, header);
  if (transfer.flags & transfer_flag::kPiece) {
    header.data = transfer.operation->array();
    if (transfer.flags & transfer_flag::kLastPiece) header.flags |= frame_flag::kLast;
  }
  encode(header, at);
  gather(local_of(transfer), at + kHeaderBytes, operand);
  if (compares)
    gather(PieceCursor(const_cast<std::byte*>(transfer.compare)), at + kHeaderBytes + operand,
           transfer.length);
  if (wants_data(transfer.op)) {
    request.landing = PieceCursor(transfer.result);
    result_bytes_ += transfer.length;
  } else if (transfer.delivery == Delivery::inject) {
    std::exchange(request.operation, nullptr)->settle(Errc::ok, transfer.length);
  }
}

bool Session::post_notify(std::uint64_t data, std::uint64_t length) noexcept try {
  if (broken_ || output_.copied(Lane::requests) >= kMostCopied) return false;
  output_.append_header(Lane::requests, {.type = FrameType::notify, .total = length, .data = data});
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// The operation may be gone once it is settled.
void Session::settle(const Request& request, Errc error) noexcept {
  if (request.rows) return settle_rows(request, error);
  PathCounts& counts = services_.counts;
  ++counts.settled;
  if (error != Errc::ok) ++counts.errors;
  if (error == Errc::ok && request.op != OpCode::read && request.op != OpCode::receive &&
      request.op != OpCode::describe && request.op != OpCode::probe)
    counts.bytes_out += request.length;
  if (error == Errc::ok && wants_data(request.op) && request.op != OpCode::describe)
    counts.bytes_in += request.length;
  if (request.op == OpCode::receive) return finish_pull(error);
  if (request.operation)
    request.operation->settle(error, error == Errc::ok ? request.length : 0);
  else if (error != Errc::ok)
    services_.completions.push_remote({.context = request.context, .error = error, .flags = request.flags});
}

void Session::finish_oldest(Errc error) {
  do {
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    if (handed_over_) --handed_over_;
    if (is_atomic(request.op) && wants_data(request.op) && !request.local) result_bytes_ -= request.length;
    settle(request, request.error != Errc::ok ? request.error : error);
  } while (!requests_.empty() && requests_.front().local);
  read_again();
  while (!waiting_pulls_.empty() && requests_.size() < kMaxOutstanding) {
    const Pull next = waiting_pulls_.front();
    waiting_pulls_.pop_front();
    pull(next);
  }
}

// Whether an answer may come at all, and whether it must bring data.
bool Session::awaits_data() const noexcept {
  const Request& request = requests_[0];
  return request.op == OpCode::probe ? request.length != 0 : wants_data(request.op);
}

Errc Session::on_ack() {
  for (std::uint64_t i = 0; i < frame_.total; ++i) {
    if (handed_over_ == 0 || awaits_data()) return Errc::protocol;
    finish_oldest(Errc::ok);
  }
  return Errc::ok;
}

Errc Session::on_fail() {
  if (handed_over_ == 0) return Errc::protocol;
  finish_oldest(static_cast<Errc>(frame_.data));
  return Errc::ok;
}

Errc Session::on_data() {
  if (handed_over_ == 0 || !awaits_data()) return Errc::protocol;
  const Request& request = requests_.front();
  const std::uint64_t left = request.length - request.got;
  if (frame_.length > left || ((frame_.flags & frame_flag::kLast) && frame_.length != left))
    return Errc::protocol;
  sink_ = request.error == Errc::ok && request.op != OpCode::probe ? Sink::landing : Sink::drain;
  payload_left_ = frame_.length;
  return payload_left_ ? Errc::ok : end_payload();
}

}  // namespace fab
