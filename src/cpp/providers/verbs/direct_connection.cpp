#include <algorithm>

#include "base/bytes/random.h"
#include "providers/verbs/direct.h"
#include "providers/verbs/endpoint.h"
#include "providers/verbs/route.h"

// The part of Direct that opens and ends the connection of the devices, and decides what becomes of the
// requests that were posted over it.
namespace fab::verbs {
namespace {

constexpr unsigned kMostDirectCalls = 3;  // failed calls, without a success between them

// Whether the peer's device has refused a request; then it begins none of the requests behind it. After an
// error of this side's device, the peer's device may have begun them.
bool refusal(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool Direct::connect() {
  const std::uint64_t token = services_.token();
  if (link_ != Link::none || token == 0) return false;
  connection_ = std::make_unique<Connection>(
      endpoint_.connections(), *this,
      Connection::Depth{kDepth, 0, Staging::kInlineBytes,
                        sinks_ ? sinks_->domain() : endpoint_.shared().protection_domain});
  call_until_ = endpoint_.attended() + Liveness::handshake_time(endpoint_.deadlines());
  endpoint_.watch();
  if (const auto route = route_to(peer_, endpoint_.shared().ways())) {
    link_ = Link::connecting;
    if (connection_->call(*route, {.purpose = PrivateData::Purpose::memory, .to = peer_.id, .token = token}))
      return false;
  }
  give_up_call();
  return false;
}

// Another call may follow. After kMostDirectCalls in vain, messages do everything for a while, which is twice
// as long each time. Peers that failed together do not come back together.
void Direct::give_up_call() noexcept {
  connection_.reset();
  link_ = Link::none;
  if (++failed_calls_ >= kMostDirectCalls) {
    link_ = Link::resting;
    const std::chrono::nanoseconds by_chance(random_u64() % static_cast<std::uint64_t>(rest_.count()));
    rests_until_ = Deadline::in(rest_ / 2 + by_chance);
    rest_ = std::min<std::chrono::nanoseconds>(2 * rest_, kLongestRest);
  }
  services_.on_waiting();
}

bool Direct::by_messages() noexcept {
  if (link_ == Link::resting && rests_until_.passed()) {
    link_ = Link::none;
    failed_calls_ = kMostDirectCalls - 1;  // one call decides
  }
  return link_ == Link::resting || link_ == Link::ended;
}

bool Direct::tick() noexcept {
  if (link_ == Link::connecting && endpoint_.attended() >= call_until_) {
    failed_calls_ = kMostDirectCalls;  // what does not answer in time is not asked twice
    give_up_call();
  }
  // With soft-iWARP the first message over a new connection may never leave (see VerbsStream::tick()).
  // on_closed() repeats what was posted.
  if (link_ == Link::connected && endpoint_.shared().device.iwarp() && !proven_useful_ && posted_ != 0 &&
      endpoint_.attended() >= answer_until_)
    on_closed(Errc::peer_lost);
  return link_ == Link::connecting;
}

void Direct::on_connected() noexcept {
  link_ = Link::connected;
  ++signs_;
  services_.on_waiting();
}

void Direct::on_closed(Errc why) noexcept {
  if (why == Errc::busy) failed_calls_ = kMostDirectCalls;  // who is busy is left alone for a while
  if (link_ == Link::connecting || !proven_useful_) give_up_call();
  break_off(false);
}

void Direct::on_completion(const ibv_wc& completion) noexcept {
  // The completion has only 31 bits of the request's number.
  const std::uint32_t behind =
      (static_cast<std::uint32_t>(posted_) - Connection::number_of(completion)) & 0x7FFFFFFF;
  const std::uint64_t number = posted_ - behind;
  ++signs_;
  if (completion.status == IBV_WC_SUCCESS) {
    proven_useful_ = true;
    failed_calls_ = 0;
    rest_ = kFirstRest;
    completed_ = std::max(completed_, number);
    settle_completed();
    if (!requests_.empty()) services_.on_waiting();
  } else {
    const bool refused = refusal(completion.status);
    // The requests before the failed one were done, and maybe some behind the one that is named (see post()).
    completed_ = std::max(completed_, number - 1);
    settle_completed();
    // A connection over which nothing succeeds counts as a failed call, or it would be made again for ever.
    if (!refused && !proven_useful_) give_up_call();
    break_off(refused);
  }
}

void Direct::break_off(bool refused) noexcept {
  connection_.reset();
  if (link_ != Link::ended && link_ != Link::resting) link_ = Link::none;
  send_failed_ = proven_useful_ = false;
  chained_ = 0;
  posted_ = completed_ = 0;
  unposted_ = 0;
  std::optional<std::uint64_t> key;  // of the region of the oldest request that has begun
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    const bool begun = std::exchange(request.posted, 0) != 0;
    request.last = 0;
    if (request.fate != Request::Fate::devices) continue;
    if (begun && !key) key = request.transfer.key;
    // A device has not begun a request that it refuses, nor those behind it; updates before it have
    // completed. After other errors nobody knows whether an update was done, so it cannot be repeated.
    if (begun && !refused && is_atomic(request.transfer.op)) {
      request.fate = Request::Fate::lost;
      request.error = Errc::peer_lost;
    } else if (key && request.transfer.key == *key) {
      request.fate = Request::Fate::session;
    }
  }
  if (key) {
    known_.erase(*key);
    recent_ = {};
  }
  settle_completed();
  services_.on_waiting();
}

}  // namespace fab::verbs
