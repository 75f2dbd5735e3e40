#include "fab/request.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "fab/state.h"

namespace fab::FAB_INTERFACE_NAME {
namespace {

std::string outcome(const fab::Failure& asked, const fab::Operation& operation, fab::Context& context) {
  fab::Failure failure = asked;
  failure.error = operation.completion().error;
  return fab::text_of(failure, &context);
}

}  // namespace

Request::Request(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Request::Request(Request&&) noexcept = default;
Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) let_go();
  state_ = std::move(other.state_);
  return *this;
}
Request::~Request() { let_go(); }

// What cannot be left alone is over after this: a receive that no message has met, and what uses borrowed
// memory.
void Request::State::finish() noexcept try {
  if (asked.op == fab::OpCode::receive) endpoint->context->inbox().cancel(operation);
  const bool borrowed = !memory.owner() && kind.size == 0;  // an update has its memory here
  if (borrowed) endpoint->wait([this] { return operation.done(); }, {});
} catch (const std::exception&) {
  return;  // the endpoint is closed, which has ended the operation
}

// An operation that goes on has its memory until it is done: what was moved in stays with the endpoint, and
// for what was borrowed the caller waits here.
void Request::let_go() noexcept {
  if (!state_) return;
  if (state_->endpoint->domain->core->inherited()) {
    [[maybe_unused]] auto* const parents = state_.release();
    return;
  }
  if (!done()) state_->finish();
  if (done()) return state_.reset();
  const auto held = state_->endpoint;
  held->dropped.add(std::move(state_));
}

bool Request::done() const noexcept { return state_->operation.done(); }

bool Request::wait_for(double seconds) const {
  if (done()) return true;
  return translated(
      [&] { return state_->endpoint->wait([this] { return done(); }, deadline_in(seconds)) || done(); });
}

void Request::wait(double seconds) const {
  if (!wait_for(seconds))
    throw error_of(fab::Errc::timeout,
                   std::string(fab::verb(state_->asked.op)) + " of " + std::to_string(state_->asked.nbytes) +
                       " bytes with " + fab::peer_text(state_->asked.peer) + " is not done after " +
                       std::to_string(seconds) + " seconds; it goes on, and can be waited for again");
  succeeded();
}

std::string Request::error() const {
  if (!done() || state_->operation.completion().error == fab::Errc::ok) return {};
  return outcome(state_->asked, state_->operation, *state_->endpoint->context);
}

void Request::cancel() {
  if (done()) return;
  translated([&] { return state_->endpoint->context->inbox().cancel(state_->operation); });
}

const Request::State& Request::succeeded() const {
  if (!done()) throw error_of(fab::Errc::bad_state, "the operation is not done; call wait() first");
  if (const fab::Errc error = state_->operation.completion().error; error != fab::Errc::ok)
    throw error_of(error, outcome(state_->asked, state_->operation, *state_->endpoint->context));
  return *state_;
}

std::size_t Request::size() const { return succeeded().operation.completion().length; }
Peer Request::source() const { return Peer{succeeded().operation.completion().source}; }
std::uint64_t Request::tag() const { return succeeded().operation.completion().tag; }

const std::byte* Request::fetched(Kind kind) const {
  const State& state = succeeded();
  const auto text = [](Kind of) {
    return std::string(of.is_float    ? "a floating-point"
                       : of.is_signed ? "a signed"
                                      : "an unsigned") +
           " number of " + std::to_string(of.size) + " bytes";
  };
  if (state.kind == kind) return state.former;
  throw error_of(fab::Errc::invalid, state.kind.size ? "the update was of " + text(state.kind) + ", and " +
                                                           text(kind) + " is asked for"
                                                     : "only an update has a former value, and this is a " +
                                                           std::string(fab::verb(state.asked.op)));
}

// --- those that were dropped

void Request::Dropped::add(std::unique_ptr<Request::State> request) noexcept {
  request->endpoint.reset();  // which has it from now on
  const std::lock_guard lock(mutex_);
  request->next = std::move(first_);
  first_ = std::move(request);
  count_.store(count_.load() + 1);
}

void Request::Dropped::sweep(bool all) noexcept {
  if (count_.load(std::memory_order_relaxed) < (all ? 1 : kFew)) return;
  List over;  // whose memory goes without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (!all && count_.load() < enough_) return;
    List* at = &first_;
    std::size_t left = 0;
    while (*at) {
      if (!(*at)->operation.done()) {
        ++left;
        at = &(*at)->next;
        continue;
      }
      List rest = std::move((*at)->next);
      (*at)->next = std::move(over);
      over = std::move(*at);
      *at = std::move(rest);
    }
    count_.store(left);
    enough_ = std::max(kFew, 2 * left);  // so that a request costs the same however many wait
  }
  let_go(std::move(over));
}

// One after the other, as a list that ends itself would need a stack of its length.
void Request::Dropped::let_go(List list) noexcept {
  while (list) list = std::move(list->next);
}

}  // namespace fab::FAB_INTERFACE_NAME
