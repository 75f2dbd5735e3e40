#include "fab/endpoint.h"

#include <cstring>
#include <utility>

#include "fab/state.h"

namespace fab::FAB_INTERFACE_NAME {
namespace {

constexpr std::size_t kCompletions = 16;  // that nobody reads

fab::DataType type_of(Kind kind) noexcept {
  using fab::DataType;
  if (kind.is_float) return kind.size == 4 ? DataType::f32 : DataType::f64;
  switch (kind.size) {
    case 1:
      return kind.is_signed ? DataType::i8 : DataType::u8;
    case 2:
      return kind.is_signed ? DataType::i16 : DataType::u16;
    case 4:
      return kind.is_signed ? DataType::i32 : DataType::u32;
    default:
      return kind.is_signed ? DataType::i64 : DataType::u64;
  }
}

// Whoever names a place outside of the region learns it before anything moves.
void check_place(fab::OpCode op, std::size_t size, const fab::RemoteRegion& region, std::uint64_t offset) {
  if (offset <= region.length && size <= region.length - offset) return;
  throw error_of(fab::Errc::bounds, std::string(fab::verb(op)) + " of " + std::to_string(size) +
                                        " bytes at " + std::to_string(offset) + ": the region has " +
                                        std::to_string(region.length) + " bytes");
}

}  // namespace

Endpoint::State::State(std::shared_ptr<Domain::State> of)
    : domain(std::move(of)), manual(domain->core->options().manual_progress) {
  fab::DomainCore& core = *domain->core;
  peers->judge_parts(core.domain().part_check(), core.domain().info().links);
  context = core.open_context(
      0, {.number = core.contexts().next_endpoint_number()}, peers,
      core.open_completion_queue(kCompletions, fab::CompletionQueue::WhenFull::forget_oldest));
}

void Endpoint::State::close() noexcept {
  if (domain->core->inherited()) return;
  domain->core->contexts().close(*context);  // settles what the requests are about
  dropped.sweep(true);
}

bool Endpoint::State::wait(const std::function<bool()>& done, fab::Deadline deadline) {
  return manual ? domain->core->wait(done, deadline) : context->wait(done, deadline);
}

// All of the transfer, or an exception and nothing of it.
void Endpoint::State::post(const Transfer& transfer, Request::State& request) {
  dropped.sweep(false);
  fab::Context::FullPath full;
  for (unsigned fruitless = 0;; ++fruitless) {
    if (context->post(request.asked.peer, {&transfer, 1}, full) == 1) return;
    if (full.ended) return context->abandon(request.operation, 1, fab::Errc::peer_lost);
    if (manual) domain->core->progress();
    context->make_room(fruitless);
  }
}

Endpoint::Endpoint(const Domain& domain) {
  state_ = translated([&] { return std::make_shared<State>(domain.state_); });
}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&& other) noexcept {
  if (this != &other) close();
  state_ = std::move(other.state_);
  return *this;
}
Endpoint::~Endpoint() { close(); }

void Endpoint::close() {
  if (state_) state_->close();
}

std::string Endpoint::address() const {
  return translated([&] {
    state_->domain->core->check_open();
    const auto parts = state_->context->parts();
    if (parts.empty()) throw fab::Error(fab::Errc::closed, "the endpoint is closed");
    return fab::Name{parts}.encode();
  });
}

Peer Endpoint::insert(std::string_view address) {
  return translated([&] { return Peer{state_->peers->insert(address)}; });
}

void Endpoint::remove(Peer peer) {
  translated([&] { state_->peers->remove(static_cast<PeerId>(peer)); });
}

// --- operations

std::unique_ptr<Request::State> Endpoint::State::begin(const std::shared_ptr<State>& endpoint,
                                                       const Asked& asked, Memory local) {
  translated([&] { endpoint->domain->core->check_open(); });
  auto request = std::make_unique_for_overwrite<Request::State>();
  request->memory = std::move(local);
  request->asked = {.op = asked.op,
                    .error = fab::Errc::ok,
                    .nbytes = request->memory.size(),
                    .remote = asked.remote,
                    .key = asked.key,
                    .peer = static_cast<PeerId>(asked.peer)};
  request->endpoint = endpoint;
  request->operation.begin({});
  return request;
}

Transfer Endpoint::State::transfer_of(Request::State& request) {
  Transfer transfer{};
  transfer.operation = &request.operation;
  transfer.op = request.asked.op;
  transfer.local = request.memory.data();
  transfer.length = request.memory.size();
  transfer.remote = request.asked.remote;
  transfer.key = request.asked.key;
  transfer.delivery = fab::Delivery::delivery;
  return transfer;
}

Request Endpoint::State::start(const std::shared_ptr<State>& endpoint, const Asked& asked, Memory local,
                               std::uint16_t flags) {
  return translated([&] {
    auto request = begin(endpoint, asked, std::move(local));
    Transfer transfer = transfer_of(*request);
    transfer.flags = flags;
    endpoint->post(transfer, *request);
    return Request(std::move(request));
  });
}

Endpoint::State::Asked Endpoint::State::at(Peer peer, fab::OpCode op, std::size_t size,
                                           const fab::RemoteRegion& region, std::uint64_t offset) {
  check_place(op, size, region, offset);
  if (region.access & fab::access::kHidden)
    translated([&] { context->hint(static_cast<PeerId>(peer), region); });
  return {peer, op, region.base + offset, region.key};
}

Request Endpoint::put(Peer peer, Memory local, const Remote& remote, std::uint64_t offset) {
  const auto asked = state_->at(peer, fab::OpCode::write, local.size(), remote.state_->region, offset);
  return State::start(state_, asked, std::move(local));
}

Request Endpoint::get(Peer peer, Memory local, const Remote& remote, std::uint64_t offset) {
  check_writable("a get", local);
  const auto asked = state_->at(peer, fab::OpCode::read, local.size(), remote.state_->region, offset);
  return State::start(state_, asked, std::move(local));
}

Request Endpoint::update(Peer peer, const Operands& operands, const Remote& remote, std::uint64_t offset) {
  const auto& [what, kind, value, expected] = operands;
  const fab::OpCode op = expected ? fab::OpCode::compare_atomic : fab::OpCode::fetch_atomic;
  auto request = State::begin(state_, state_->at(peer, op, kind.size, remote.state_->region, offset), {});
  std::memcpy(request->operand, value, kind.size);
  if (expected) std::memcpy(request->expected, expected, kind.size);
  request->memory = Memory(request->operand, kind.size);
  request->kind = kind;
  request->asked.nbytes = kind.size;
  Transfer transfer = State::transfer_of(*request);
  transfer.atomic = what == Update::add        ? fab::AtomicOp::sum
                    : what == Update::exchange ? fab::AtomicOp::atomic_write
                                               : fab::AtomicOp::cswap;
  transfer.type = type_of(kind);
  transfer.result = request->former;
  transfer.compare = expected ? request->expected : nullptr;
  translated([&] { state_->post(transfer, *request); });
  return Request(std::move(request));
}

Request Endpoint::send(Peer peer, Memory local, std::uint64_t tag) {
  return State::start(state_, {peer, fab::OpCode::send, 0, tag}, std::move(local),
                      fab::transfer_flag::kTagged);
}

Request Endpoint::recv(Memory local, std::uint64_t tag, Peer peer, std::uint64_t ignore) {
  check_writable("a receive", local);
  auto request = State::begin(state_, {peer, fab::OpCode::receive, 0, tag}, std::move(local));
  fab::Receive receive;
  receive.operation = &request->operation;
  receive.local = request->memory.data();
  receive.length = request->memory.size();
  receive.rule = {.tag = tag, .ignore = ignore, .source = static_cast<PeerId>(peer), .tagged = true};
  translated([&] { state_->context->inbox().receive(receive); });
  return Request(std::move(request));
}

bool Endpoint::flush(double seconds, Peer peer) {
  const bool flushed = translated([&] {
    state_->domain->core->check_open();
    auto goals = state_->context->flush_goals(static_cast<PeerId>(peer));
    if (!state_->manual) return state_->context->flushed(goals, deadline_in(seconds));
    return state_->wait([&] { return state_->context->flushed(goals, fab::Deadline::in({})); },
                        deadline_in(seconds));
  });
  state_->dropped.sweep(true);
  return flushed;
}

bool Endpoint::progress() {
  const bool moved = translated([&] { return state_->context->progress(); });
  state_->dropped.sweep(true);
  return moved;
}

std::string Endpoint::way_to(Peer peer) {
  const auto report = translated([&] { return state_->context->report(static_cast<PeerId>(peer)); });
  return report.link + " (" + report.how + ")";
}

}  // namespace fab::FAB_INTERFACE_NAME
