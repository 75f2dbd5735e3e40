#include "providers/verbs/direct.h"

#include <algorithm>
#include <utility>

#include "base/memory/guarded_copy.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "providers/verbs/endpoint.h"

namespace fab::verbs {
namespace {

constexpr std::size_t kMostRequests = 4096;
constexpr std::uint64_t kPage = 4096;           // bytes of the smallest page of any peer
constexpr std::uint64_t kLittle = 256;          // bytes
constexpr std::uint64_t kTellAt = 1024 * 1024;  // bytes from which a work request completes as a sign of life

// Whether the bytes go through a small slot of staging memory.
bool stages(const Transfer& transfer) noexcept {
  return is_atomic(transfer.op) || (transfer.length <= Staging::kSmallBytes && !hides_local(transfer));
}

// Without them messages do the gets.
std::shared_ptr<ReadSinks> open_sinks(const VerbsEndpoint& endpoint) try {
  return std::make_shared<ReadSinks>(endpoint.shared().device, endpoint.shared().regions);
} catch (const std::exception&) {
  return {};
}

}  // namespace

Direct::Direct(VerbsEndpoint& endpoint, EndpointAddress peer, Services services)
    : endpoint_(endpoint),
      peer_(std::move(peer)),
      services_(std::move(services)),
      sinks_(endpoint.shared().device.iwarp() ? open_sinks(endpoint) : nullptr),
      staging_(sinks_ ? sinks_->staging() : endpoint.staging()) {
  repeat_.asker = this;
  requests_.reserve(1);
}

Direct::~Direct() { fail(Errc::canceled); }

// --- transfers

Direct::Way Direct::refuse(const Transfer& transfer, std::uint64_t after) noexcept try {
  if (failed_) return Way::later;
  requests_.reserve(requests_.size() + 1);
  Request& request = requests_.push_back();
  request.transfer = transfer;
  static_cast<Course&>(request) = {.number = ++services_.counts.posted,
                                   .after = after,
                                   .fate = Request::Fate::lost,
                                   .error = Errc::no_memory};
  return Way::devices;
} catch (const std::exception&) {
  return Way::later;  // it can have the place of a request that is under way
}

Direct::Way Direct::take(const Transfer& transfer, std::uint64_t after) noexcept {
  const bool staged = stages(transfer);
  Choice chosen{Way::session};
  try {
    chosen = choose(transfer, staged);
    if (chosen.way != Way::session) requests_.reserve(requests_.size() + 1);
  } catch (const std::exception&) {
    return refuse(transfer, after);
  }
  if (chosen.way == Way::session) return Way::session;
  if (failed_ || requests_.size() >= kMostRequests) return Way::later;
  // A transfer that finds no free slot is not taken. Without requests of its own, this link would wait for
  // the slots of other links, so its puts and gets go through the session.
  StagingMemory& small = staging_.small();
  const bool inlined = chosen.way == Way::devices && inlines(transfer);
  if (staged && chosen.way == Way::later && !small.half_free()) return Way::later;
  if (staged && !inlined && !small.has_free()) {
    const bool others_have_them = requests_.empty() && !is_atomic(transfer.op);
    return others_have_them ? Way::session : Way::later;
  }

  Request& request = requests_.push_back();
  request.transfer = transfer;
  const Whole whole(transfer);
  static_cast<Course&>(request) = {.number = ++services_.counts.posted,
                                   .after = after,
                                   .offset = whole.before,
                                   .whole = whole.length,
                                   .stripe = is_stripe(transfer),
                                   .array = transfer.operation->array(),
                                   .inlined = inlined};
  if (is_atomic(transfer.op) && !copy_operands(request)) {
    request.fate = Request::Fate::lost;
    request.error = Errc::bounds;
    return Way::devices;
  }
  if (!staged || (!inlined && !stage(request, small))) return Way::devices;
  if (chosen.way == Way::devices) {
    if (request.region != *chosen.region) request.region = *chosen.region;
    request.fate = Request::Fate::devices;
  }
  if (transfer.delivery == Delivery::inject &&
      (transfer.op == OpCode::write || transfer.op == OpCode::atomic)) {
    request.context = transfer.operation->completion().context;
    request.flags = transfer.operation->late_flags();
    std::exchange(request.transfer.operation, nullptr)->settle(Errc::ok, transfer.length);
  }
  return Way::devices;
}

// Returns false if the memory is not there.
bool Direct::copy_operands(Request& request) noexcept {
  const Transfer& transfer = request.transfer;
  const void* const operand = transfer.piece_count ? transfer.local_pieces->iov_base : transfer.local;
  if (transfer.atomic != AtomicOp::atomic_read && !copy_guarded(&request.operand, operand, 8)) return false;
  return transfer.op != OpCode::compare_atomic || copy_guarded(&request.compare, transfer.compare, 8);
}

// Whether the request itself carries the bytes. The caller's memory stays as it is until the put is complete,
// so no slot has to keep them for another try.
bool Direct::inlines(const Transfer& transfer) const noexcept {
  return transfer.op == OpCode::write && transfer.length <= connection_->inline_bytes() &&
         transfer.delivery != Delivery::inject && transfer.piece_count <= 1 && !hides_local(transfer);
}

// Returns false if the memory is not there. Then the request is the session's, which tells so.
bool Direct::stage(Request& request, StagingMemory& slots) noexcept {
  Transfer& transfer = request.transfer;
  request.slots = &slots;
  request.staged = slots.take();
  request.local_key = slots.key();
  if (transfer.op == OpCode::write) {
    std::byte* const slot = slots.at(request.staged);
    if (!gather(transfer, slot)) {
      release(request);
      request.fate = Request::Fate::session;
      return false;
    }
    transfer.local = slot;
  }
  // The bytes have been copied, so the caller's pieces are not needed any more.
  if (transfer.op != OpCode::read) transfer.piece_count = 0;
  return true;
}

// Decides who does a request. Returns false if more has to be known first.
bool Direct::decide(Request& request) noexcept try {
  const Choice chosen = choose(request.transfer, request.slots);
  if (chosen.way == Way::later) return false;
  const Reach reach = chosen.way == Way::session ? Reach::never : reach_local(request);
  if (reach == Reach::later) return false;
  request.fate = reach == Reach::now ? Request::Fate::devices : Request::Fate::session;
  if (reach == Reach::now) request.region = *chosen.region;
  return true;
} catch (const std::exception&) {
  request.fate = Request::Fate::lost;
  request.error = Errc::no_memory;
  return true;
}

// Where to copy memory that the device does not know. Null: it is registered instead, because it is too long,
// because a cache keeps what is registered, or because no slot is free.
StagingMemory* Direct::large_slots_for(const Transfer& transfer) noexcept {
  if (transfer.length > Staging::kLargeBytes || hides_local(transfer)) return nullptr;
  if (!sinks_ && endpoint_.shared().regions.keeps_local()) return nullptr;
  StagingMemory* const slots = staging_.large();
  return slots && slots->has_free() ? slots : nullptr;
}

// Sees to it that the device reaches the local memory.
Direct::Reach Direct::reach_local(Request& request) try {
  const Transfer& transfer = request.transfer;
  // next_piece() finds the key of each piece.
  if (request.slots || request.inlined || transfer.piece_count > 1) return Reach::now;
  const iovec whole = local_of(transfer).here(transfer.length);
  const bool stores = transfer.op == OpCode::read;
  DeviceRegions& regions = endpoint_.shared().regions;
  if (request.loan) {
    if (!request.loan->over()) return Reach::later;
    request.own = std::exchange(request.loan, nullptr)->take();
    if (!request.own.held()) return Reach::never;
  } else {
    if (const auto key = sinks_ ? std::nullopt : regions.local_key(whole.iov_base, whole.iov_len, stores)) {
      request.local_key = *key;
      return Reach::now;
    }
    if (StagingMemory* const slots = large_slots_for(transfer))
      return stage(request, *slots) ? Reach::now : Reach::never;
    if (!regions.takes_long(whole.iov_len))
      request.own = sinks_ ? sinks_->lend(whole.iov_base, whole.iov_len)
                           : regions.lend(whole.iov_base, whole.iov_len, stores);
    else if (!sinks_)
      request.own = regions.lend_known(whole.iov_base, whole.iov_len, stores);
  }
  if (!request.own.held()) {
    request.loan = lend_later(whole, stores);
    return Reach::later;
  }
  request.local_key = DeviceRegions::key_of(request.own);
  return Reach::now;
} catch (const std::exception&) {
  return Reach::never;
}

std::shared_ptr<Loan> Direct::lend_later(const iovec& whole, bool stores) {
  DeviceRegions& regions = endpoint_.shared().regions;
  Loan::Lend lend;
  if (sinks_)
    lend = [sinks = sinks_, whole] { return sinks->lend(whole.iov_base, whole.iov_len); };
  else
    lend = [&regions, whole, stores] { return regions.lend(whole.iov_base, whole.iov_len, stores); };
  return regions.registrar().lend(std::move(lend), endpoint_.later().links_by_thread());
}

// Returns false if the queue pair takes nothing more.
bool Direct::send_chain() noexcept {
  if (chained_ == 0) return true;
  for (std::size_t i = 0; i + 1 < chained_; ++i) chain_[i].next = &chain_[i + 1];
  chain_[chained_ - 1].next = nullptr;
  chain_[chained_ - 1].send_flags |= IBV_SEND_SIGNALED;
  chained_ = 0;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(connection_->queue_pair(), chain_, &bad) == 0;
}

// The local memory for the next work request: as much as goes to or comes from `there` in one request.
ibv_sge Direct::next_piece(const Request& request, const Description::Place& there) {
  const Transfer& transfer = request.transfer;
  std::uint64_t length =
      std::min({transfer.length - request.posted, there.left, endpoint_.shared().device.max_message});
  std::uint64_t local;
  std::uint32_t local_key = request.local_key;
  if (request.slots) {
    local = reinterpret_cast<std::uint64_t>(request.slots->at(request.staged)) + request.posted;
  } else {
    PieceCursor cursor = local_of(transfer);
    cursor.skip(request.posted);
    const iovec here = cursor.here(length);
    length = here.iov_len;
    local = reinterpret_cast<std::uint64_t>(here.iov_base);
    if (transfer.piece_count > 1)
      local_key = endpoint_.shared()
                      .regions.local_key(here.iov_base, length, transfer.op == OpCode::read)
                      .value_or(0);
  }
  // soft-iWARP (Linux 6.1) answers with bytes of the wrong page if about 30 bytes or fewer cross a page
  // boundary.
  if (endpoint_.shared().device.iwarp() && length <= kLittle)
    length = std::min(length, kPage - there.address % kPage);
  return {.addr = local, .length = static_cast<std::uint32_t>(length), .lkey = local_key};
}

// Sets what `work` does with `length` bytes of the region.
void Direct::describe(ibv_send_wr& work, const Request& request, const Description::Place& there,
                      std::uint64_t length) const noexcept {
  const Transfer& transfer = request.transfer;
  if (!is_atomic(transfer.op)) {
    work.opcode = transfer.op == OpCode::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    work.wr.rdma.remote_addr = there.address;
    work.wr.rdma.rkey = there.rkey;
    // The library of the device copies such bytes, so they must not be the program's own, which may be gone.
    const bool copied = request.inlined || request.slots;
    if (transfer.op == OpCode::write && copied && length <= connection_->inline_bytes())
      work.send_flags |= IBV_SEND_INLINE;
    return;
  }
  work.wr.atomic.remote_addr = there.address;
  work.wr.atomic.rkey = there.rkey;
  if (transfer.op == OpCode::compare_atomic) {
    work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    work.wr.atomic.compare_add = request.compare;
    work.wr.atomic.swap = request.operand;
  } else {
    work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    work.wr.atomic.compare_add = request.operand;
  }
}

// Copies the bytes at `place`, and lets it name the copy. Returns false if the memory is not there.
bool Direct::copy_inline(ibv_sge& place) noexcept {
  std::byte* const copy = staging_.inline_copy(chained_);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  const auto* const from = reinterpret_cast<const std::byte*>(place.addr);
  if (!copy_guarded(copy, from, place.length)) return false;
  place.addr = reinterpret_cast<std::uint64_t>(copy);
  return true;
}

void Direct::post(Request& request, bool& moved) noexcept {
  const Transfer& transfer = request.transfer;
  const Description& region = *request.region;
  while (request.posted < transfer.length) {
    if (posted_ - completed_ >= kDepth) return;
    const Description::Place there = region.at(transfer.remote - region.base + request.posted);
    ibv_sge& place = places_[chained_];
    place = next_piece(request, there);
    const std::uint64_t length = place.length;
    if (request.inlined && (length > connection_->inline_bytes() || !copy_inline(place))) {
      request.fate = Request::Fate::session;  // which tells that the memory is not there
      return;
    }
    ibv_send_wr& work = chain_[chained_];
    work = {};
    if (posted_++ == 0) answer_until_ = endpoint_.attended() + VerbsStream::kAnswerTime;
    work.wr_id = connection_->work_id(static_cast<std::uint32_t>(posted_), false);
    work.sg_list = &place;
    work.num_sge = 1;
    describe(work, request, there, length);
    request.posted += length;
    moved = true;
    // Some drivers tell an error under the oldest request that has no completion yet. No update is between
    // that one and the failed one, because each has a completion: so none is repeated that was done.
    if (length >= kTellAt || is_atomic(transfer.op)) work.send_flags |= IBV_SEND_SIGNALED;
    if (++chained_ == std::size(chain_) && !send_chain()) {
      send_failed_ = true;
      return;
    }
  }
  request.last = posted_;
}

bool Direct::pump() noexcept {
  settle_completed();
  bool moved = false;
  while (!send_failed_ && unposted_ < requests_.size()) {
    Request& next = requests_[unposted_];
    if (next.fate == Request::Fate::undecided && !decide(next)) break;
    if (next.fate == Request::Fate::devices) {
      if (by_messages())
        next.fate = Request::Fate::session;
      else if (!connected() || posted_ - completed_ >= kDepth)
        break;
      else {
        post(next, moved);
        if (next.fate == Request::Fate::devices && next.last == 0) break;
      }
    }
    ++unposted_;
  }
  if (link_ == Link::connected && (send_failed_ || !send_chain())) break_off(false);
  if (!requests_.empty() && requests_.front().fate == Request::Fate::session) moved |= repeat_front();
  return moved;
}

// Repeats the oldest request through the session. Only one is repeated at a time, so that transfers settle in
// order.
bool Direct::repeat_front() noexcept {
  Session* const session = services_.session();
  if (!session) return false;
  Request& front = requests_.front();
  Transfer transfer = front.transfer;
  repeat_.begin({.hook = [](Operation& done) noexcept {
    static_cast<Repeat&>(done).asker->on_repeated(done.completion());
  }});
  repeat_.belongs_to(front.array);
  // The request may be done twice without harm, so it needs no number of a flow.
  transfer.flags &= static_cast<std::uint16_t>(~transfer_flag::kMarked);
  if (front.stripe) {
    transfer.flags |= transfer_flag::kMarked;
    repeat_.frame = {.flags = frame_flag::kStripe, .data = front.offset, .id = front.whole};
  }
  transfer.operation = &repeat_;
  // The session copies these operands at once.
  if (is_atomic(transfer.op)) {
    transfer.local = reinterpret_cast<std::byte*>(&front.operand);
    transfer.compare = reinterpret_cast<const std::byte*>(&front.compare);
  }
  transfer.delivery = std::max(transfer.delivery, Delivery::delivery);
  front.fate = Request::Fate::repeated;
  const auto post = [&] { return session->post({&transfer, 1}); };
  if (services_.counts.repost(front.number, post) == 0) {
    // The session is full. The next turn of the stream tries again.
    front.fate = Request::Fate::session;
    return false;
  }
  services_.on_posted();
  return true;
}

void Direct::on_repeated(const Completion& outcome) noexcept {
  if (requests_.empty() || requests_.front().fate != Request::Fate::repeated) return;
  settle_front(outcome.error);
  settle_completed();
  services_.on_waiting();
}

void Direct::release(Request& request) noexcept {
  if (request.slots) std::exchange(request.slots, nullptr)->give(request.staged);
  // Over iWARP the peer could write there until this has ended.
  if (request.own.held() && !sinks_ && request.transfer.length > Registrar::kAtOnce)
    endpoint_.shared().regions.registrar().give_back(std::move(request.own));
  request.own.reset();
  if (request.loan) request.loan.reset();
}

// The operation may be gone once it is settled.
void Direct::settle_front(Errc error) noexcept {
  Request& front = requests_.front();
  const Transfer& transfer = front.transfer;
  Operation* const operation = transfer.operation;
  const std::uint64_t length = transfer.length;
  if (error == Errc::ok && front.slots && front.fate == Request::Fate::devices) {
    const std::byte* const bytes = front.slots->at(front.staged);
    if (transfer.op == OpCode::read && !scatter(bytes, local_of(transfer), length)) error = Errc::bounds;
    const bool fetches = transfer.op == OpCode::fetch_atomic || transfer.op == OpCode::compare_atomic;
    if (fetches && !copy_guarded(transfer.result, bytes, 8)) error = Errc::bounds;
  }
  // The session itself counts the requests that it has repeated.
  if (front.fate != Request::Fate::repeated) services_.counts.settle(transfer.op, transfer.length, error);
  const std::uint64_t context = front.context;
  const std::uint32_t flags = front.flags;
  release(front);
  requests_.drop_front();
  if (unposted_) --unposted_;
  if (operation)
    operation->settle(error, error == Errc::ok ? length : 0);
  else if (error != Errc::ok)
    endpoint_.services().completions.push_remote({.context = context, .error = error, .flags = flags});
}

bool Direct::front_ended() noexcept {
  const Request& front = requests_.front();
  const bool posted = front.fate == Request::Fate::devices && front.last != 0 && front.last <= completed_;
  if (!posted && front.fate != Request::Fate::lost) return false;
  if (front.after > settled_by_session_) {
    if (!services_.settled_by_session(front.after)) return false;
    settled_by_session_ = front.after;
  }
  return true;
}

// --- the end

void Direct::fail(Errc error) noexcept {
  failed_ = true;
  connection_.reset();
  link_ = Link::ended;
  forget_all();
  while (!requests_.empty()) settle_front(error);
}

}  // namespace fab::verbs
