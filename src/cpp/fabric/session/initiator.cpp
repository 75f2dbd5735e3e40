#include "fabric/session/initiator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes/wire.h"
#include "base/memory/guarded_copy.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/link_operation.h"

namespace fab {
namespace {

// The longest payloads that are copied; longer ones are sent from where they lie.
constexpr std::size_t kCopy = 256;
constexpr std::size_t kCopyPieces = 16 * 1024;    // of payloads that lie in many pieces
constexpr std::size_t kCopyInject = 64 * 1024;    // of injected payloads, whose buffer the caller wants back
constexpr std::uint64_t kLongestRow = 64 * 1024;  // bytes of a get that shares its request with others

bool wants_data(OpCode op) noexcept {
  return op == OpCode::read || op == OpCode::fetch_atomic || op == OpCode::compare_atomic ||
         op == OpCode::receive;
}

// The number of gets at the front of `batch` that go as one request.
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

// Adds to the header what a link says of a transfer (LinkOperation).
void mark(const Transfer& transfer, FrameHeader& header) noexcept {
  if (!(transfer.flags & transfer_flag::kMarked)) return;
  const FrameHeader& marks = link_operation(transfer).frame;
  header.id = marks.id;
  header.flags |= marks.flags;
  if (marks.flags & frame_flag::kStripe) header.data = marks.data;
}

}  // namespace

Delivery Initiator::level_of(const Transfer& transfer) const noexcept {
  if (wants_data(transfer.op) || transfer.op == OpCode::control) return Delivery::delivery;
  const bool answered = transfer.delivery == Delivery::transmit && end_.handover == Handover::when_answered;
  return answered ? Delivery::delivery : transfer.delivery;
}

// Counts a transfer and returns its number. OpCode::control is not counted, because no user posts it.
std::uint64_t Initiator::count_posted(OpCode op) noexcept {
  std::uint64_t& posted = end_.services.counts.posted;
  return op == OpCode::control ? posted + 1 : ++posted;
}

bool Initiator::refuse(const Transfer& transfer) noexcept {
  if (!requests_.empty()) return false;
  count_posted(transfer.op);
  settle({.operation = transfer.operation, .op = transfer.op}, Errc::no_memory);
  return true;
}

std::size_t Initiator::post(std::span<const Transfer> batch) {
  const Transfer& transfer = batch.front();
  reserve();
  if (transfer.op == OpCode::read) {
    if (const std::size_t rows = rows_at_front(batch); rows > 1) {
      post_rows(batch.first(rows));
      return rows;
    }
  }
  // Made in its place: to copy a request costs as much as its frame.
  Request& request = requests_.push_back();
  request = {.operation = transfer.operation,
             .op = transfer.op,
             .delivery = level_of(transfer),
             .error = check_copied(transfer),
             .length = transfer.length};
  if (request.delivery <= Delivery::transmit) {
    request.context = transfer.operation->completion().context;
    request.flags = transfer.operation->late_flags();
  }
  request.local = request.error != Errc::ok;
  if (!request.local) {
    try {
      post_request(transfer, request);
    } catch (...) {
      requests_.pop_back();
      throw;
    }
  }
  request.number = count_posted(transfer.op);
  request.end = end_.output.requests_queued();
  if (request.local && requests_.size() == 1) {
    const Request refused = std::move(request);
    requests_.pop_back();
    settle(refused, refused.error);
  }
  return 1;
}

// Queues the frames of a request.
void Initiator::post_request(const Transfer& transfer, Request& request) {
  switch (transfer.op) {
    case OpCode::write:
      return post_write(transfer, request);
    case OpCode::read: {
      FrameHeader header{
          .type = FrameType::read, .key = transfer.key, .remote = transfer.remote, .total = transfer.length};
      mark(transfer, header);
      end_.output.append_header(SessionOutput::Lane::requests, header);
      request.landing = local_of(transfer);
      return;
    }
    case OpCode::control:
      return post_control(transfer, request);
    default:
      return post_atomic(transfer, request);
  }
}

void Initiator::post_control(const Transfer& transfer, Request& request) {
  const FrameHeader& frame = link_operation(transfer).frame;
  end_.output.append_header(SessionOutput::Lane::requests, frame);
  if (frame.length != 0) end_.output.zeros(frame.length);
  request.landing = local_of(transfer);
  request.ignored = !transfer.local;
  end_.extension.on_post(frame);
}

void Initiator::post_rows(std::span<const Transfer> run) {
  auto rows = std::make_unique<Rows>();
  rows->key = run.front().key;
  rows->rows.reserve(run.size());
  rows->places.reserve(run.size());
  std::byte* at = end_.output.append(SessionOutput::Lane::requests, kHeaderBytes + run.size() * kRowBytes);
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
  Request request{.number = end_.services.counts.posted + 1,
                  .op = OpCode::read,
                  .delivery = Delivery::delivery,
                  .length = total,
                  .end = end_.output.requests_queued()};
  request.landing = PieceCursor(rows->places.data(), rows->places.size());
  request.rows = std::move(rows);
  requests_.push_back(std::move(request));
  end_.services.counts.posted += run.size();
  asked_rows_ += run.size();
}

// The rows of a request fail together if one range is out of bounds, or if the memory for one of them is not
// there. That must not fail the others, so each row is then asked for by itself.
void Initiator::settle_rows(const Request& request, Errc error) noexcept {
  bool again = error == Errc::bounds && !end_.failing;
  try {
    if (again) again_.reserve(again_.size() + request.rows->rows.size());
  } catch (const std::bad_alloc&) {
    again = false;
    error = Errc::no_memory;  // nobody finds out any more which of them is out of bounds
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
      again_.push_back({transfer, request.number + i});
      continue;
    }
    end_.services.counts.settle(OpCode::read, place.iov_len, error);
    row.operation->settle(error, error == Errc::ok ? place.iov_len : 0);
  }
}

void Initiator::read_again() {
  for (; !again_.empty() && requests_.size() + asked_rows_ < kMaxOutstanding; again_.pop_front()) {
    const auto& [row, number] = again_.front();
    requests_.reserve(requests_.size() + 1);
    end_.output.append_header(
        SessionOutput::Lane::requests,
        {.type = FrameType::read, .key = row.key, .remote = row.remote, .total = row.length});
    requests_.push_back({.operation = row.operation,
                         .number = number,
                         .op = OpCode::read,
                         .delivery = Delivery::delivery,
                         .again = true,
                         .length = row.length,
                         .end = end_.output.requests_queued(),
                         .landing = local_of(row)});
    ++asked_again_;
  }
}

void Initiator::post_write(const Transfer& transfer, Request& request) {
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
  mark(transfer, header);
  if (transfer.flags & transfer_flag::kStored) {
    header.flags |= frame_flag::kStriped | frame_flag::kLast;
    header.length = 0;
    request.length = 0;
    return end_.output.append_header(SessionOutput::Lane::requests, header);
  }
  const std::size_t copied = transfer.delivery == Delivery::inject ? kCopyInject
                             : transfer.piece_count > 1            ? kCopyPieces
                                                                   : kCopy;
  if (transfer.length > copied) {
    end_.output.append_header(SessionOutput::Lane::requests, header);
    end_.output.user_payload(header, local_of(transfer));
    return;
  }
  std::byte* at = end_.output.append(SessionOutput::Lane::requests, kHeaderBytes + transfer.length);
  encode(header, at);
  if (!gather(transfer, at + kHeaderBytes)) return take_back(request, kHeaderBytes + transfer.length);
  if (transfer.delivery == Delivery::inject)
    std::exchange(request.operation, nullptr)->settle(Errc::ok, transfer.length);
}

// The caller's memory is gone, so the frame that was just appended is not sent.
void Initiator::take_back(Request& request, std::size_t bytes) noexcept {
  end_.output.unappend(SessionOutput::Lane::requests, bytes);
  request.error = Errc::bounds;
  request.local = true;
}

void Initiator::post_atomic(const Transfer& transfer, Request& request) {
  const bool compares = transfer.op == OpCode::compare_atomic;
  const std::size_t operand = transfer.atomic == AtomicOp::atomic_read ? 0 : transfer.length;
  const std::size_t length = operand + (compares ? transfer.length : 0);
  const FrameType type = compares                              ? FrameType::compare
                         : transfer.op == OpCode::fetch_atomic ? FrameType::fetch
                                                               : FrameType::atomic;
  std::byte* at = end_.output.append(SessionOutput::Lane::requests, kHeaderBytes + length);
  FrameHeader header{.type = type,
                     .flags = transfer.delivery == Delivery::commit ? frame_flag::kCommit : std::uint8_t{0},
                     .atomic_op = static_cast<std::uint8_t>(transfer.atomic),
                     .data_type = static_cast<std::uint8_t>(transfer.type),
                     .length = static_cast<std::uint32_t>(length),
                     .key = transfer.key,
                     .remote = transfer.remote,
                     .total = transfer.length};
  mark(transfer, header);
  if (transfer.flags & transfer_flag::kPiece) {
    header.data = transfer.operation->array();
    if (transfer.flags & transfer_flag::kLastPiece) header.flags |= frame_flag::kLast;
  }
  encode(header, at);
  std::byte* const operands = at + kHeaderBytes;
  if (!gather(local_of(transfer), operands, operand) ||
      (compares && !copy_guarded(operands + operand, transfer.compare, transfer.length)))
    return take_back(request, kHeaderBytes + length);
  if (wants_data(transfer.op)) {
    request.landing = PieceCursor(transfer.result);
    result_bytes_ += transfer.length;
  } else if (transfer.delivery == Delivery::inject) {
    std::exchange(request.operation, nullptr)->settle(Errc::ok, transfer.length);
  }
}

bool Initiator::post_notify(const Transfer& put) noexcept try {
  if (end_.output.broken() || end_.output.copied(SessionOutput::Lane::requests) >= kMostCopied) return false;
  end_.output.append_header(SessionOutput::Lane::requests, {.type = FrameType::notify,
                                                            .key = put.key,
                                                            .remote = put.remote,
                                                            .total = put.length,
                                                            .data = put.data});
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// The owner may destroy the operation as soon as it is settled, so nothing of it is used afterwards.
void Initiator::settle(const Request& request, Errc error) noexcept {
  if (request.rows) return settle_rows(request, error);
  if (request.op != OpCode::control) end_.services.counts.settle(request.op, request.length, error);
  if (request.op == OpCode::receive) return puller_->pull_ended(error);
  if (request.operation)
    request.operation->settle(error, error == Errc::ok ? request.length : 0);
  else if (error != Errc::ok)
    end_.services.completions.push_remote(
        {.context = request.context, .error = error, .flags = request.flags});
}

void Initiator::finish_oldest(Errc error) {
  do {
    const Request request = std::move(requests_.front());
    requests_.drop_front();
    if (handed_over_) --handed_over_;
    if (request.again) --asked_again_;
    if (is_atomic(request.op) && wants_data(request.op) && !request.local) result_bytes_ -= request.length;
    settle(request, request.error != Errc::ok ? request.error : error);
  } while (!requests_.empty() && requests_.front().local);
  read_again();
}

// Whether the oldest request waits for an answer that brings data.
bool Initiator::awaits_data() const noexcept {
  const Request& request = requests_[0];
  return request.op == OpCode::control ? request.length != 0 : wants_data(request.op);
}

Errc Initiator::on_ack(const FrameHeader& frame) {
  for (std::uint64_t i = 0; i < frame.total; ++i) {
    if (handed_over_ == 0 || awaits_data()) return Errc::protocol;
    finish_oldest(Errc::ok);
  }
  return Errc::ok;
}

Errc Initiator::on_fail(const FrameHeader& frame) {
  if (handed_over_ == 0) return Errc::protocol;
  finish_oldest(static_cast<Errc>(frame.data));
  return Errc::ok;
}

Errc Initiator::on_data(const FrameHeader& frame, Reader& reader) noexcept {
  if (handed_over_ == 0 || !awaits_data()) return Errc::protocol;
  const Request& request = requests_.front();
  const std::uint64_t left = request.length - request.got;
  if (frame.length > left || ((frame.flags & frame_flag::kLast) && frame.length != left))
    return Errc::protocol;
  if (request.error == Errc::ok && !request.ignored) reader.land(request.landing);
  return Errc::ok;
}

void Initiator::end_data(const FrameHeader& frame, const Reader& reader) {
  Request& request = requests_.front();
  request.got += frame.length;
  request.landing = reader.end();
  if (reader.faulted()) request.error = Errc::bounds;
  if (frame.flags & frame_flag::kLast) finish_oldest(Errc::ok);
}

void Initiator::await_ack(Operation* operation, std::uint64_t length) {
  requests_.push_back({.operation = operation,
                       .number = end_.services.counts.posted + 1,
                       .op = OpCode::send,
                       .length = length,
                       .end = end_.output.requests_queued()});
}

void Initiator::await_message(const Matched& matched) {
  requests_.push_back({.number = end_.services.counts.posted,
                       .op = OpCode::receive,
                       .length = matched.room,
                       .end = end_.output.requests_queued(),
                       .landing = matched.landing});
}

void Initiator::sent() noexcept {
  for (; handed_over_ < requests_.size() && requests_[handed_over_].end <= end_.output.requests_sent();
       ++handed_over_)
    settle_early(requests_[handed_over_]);
}

void Initiator::held() noexcept {
  for (std::size_t i = 0; i < handed_over_; ++i) settle_early(requests_[i]);
}

// Settles the operation of a request that was sent completely, if its delivery level is reached by that.
void Initiator::settle_early(Request& request) const noexcept {
  const bool reached = request.delivery == Delivery::inject ||
                       (request.delivery == Delivery::transmit && end_.handover == Handover::at_once);
  if (reached && request.operation && !request.local && request.error == Errc::ok)
    std::exchange(request.operation, nullptr)->settle(Errc::ok, request.length);
}

void Initiator::output_fault() noexcept {
  if (handed_over_ < requests_.size()) requests_[handed_over_].error = Errc::bounds;
}

std::uint64_t Initiator::oldest() const noexcept {
  std::uint64_t oldest = requests_.empty() ? kNone : requests_.front().number;
  for (std::size_t i = 0; asked_again_ != 0 && i < requests_.size(); ++i)
    oldest = std::min(oldest, requests_[i].number);
  return again_.empty() ? oldest : std::min(oldest, again_.front().number);
}

void Initiator::fail(Errc error) noexcept {
  handed_over_ = 0;
  asked_again_ = 0;
  result_bytes_ = 0;
  while (!requests_.empty()) {
    const Request request = std::move(requests_.front());
    requests_.drop_front();
    settle(request, request.local ? request.error : error);
  }
  for (; !again_.empty(); again_.pop_front()) {
    const Transfer& row = again_.front().transfer;
    settle({.operation = row.operation, .op = OpCode::read, .length = row.length}, error);
  }
}

}  // namespace fab
