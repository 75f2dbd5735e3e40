#include <algorithm>

#include "providers/verbs/direct.h"
#include "providers/verbs/endpoint.h"
#include "providers/verbs/route.h"

// How the connection of devices comes and goes, and what that means for what was posted.
namespace fab::verbs {
namespace {

constexpr std::uint32_t kInline = 256;    // bytes
constexpr unsigned kMostDirectCalls = 3;  // in vain, one after the other

// By the peer's device, which then begins nothing that came behind. An error here may come when it has.
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
      Connection::Depth{kDepth, 0, kInline, endpoint_.shared().protection_domain});
  call_until_ = endpoint_.handshake_until();
  endpoint_.watch();
  if (const auto route = route_to(peer_, endpoint_.address())) {
    link_ = Link::connecting;
    if (connection_->call(endpoint_.address(), *route,
                          {.purpose = PrivateData::Purpose::memory, .to = peer_.id, .token = token}))
      return false;
  }
  give_up_call();
  return false;
}

// Messages do what devices cannot.
void Direct::give_up_call() noexcept {
  connection_.reset();
  link_ = ++failed_calls_ < kMostDirectCalls ? Link::none : Link::ended;
  services_.on_waiting();
}

bool Direct::tick() noexcept {
  if (link_ == Link::connecting && endpoint_.attended() >= call_until_) {
    failed_calls_ = kMostDirectCalls;
    give_up_call();
  }
  // As answers to a stream's first message: on_closed() repeats what was posted.
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

void Direct::on_closed(Errc) noexcept {
  if (link_ == Link::connecting || !proven_useful_) give_up_call();
  break_off(false);
}

void Direct::on_completion(const ibv_wc& completion) noexcept {
  // Numbers are of 31 bits on the way.
  const std::uint32_t behind =
      (static_cast<std::uint32_t>(posted_) - Connection::number_of(completion)) & 0x7FFFFFFF;
  const std::uint64_t number = posted_ - behind;
  ++signs_;
  if (completion.status == IBV_WC_SUCCESS) {
    proven_useful_ = true;
    failed_calls_ = 0;
    completed_ = std::max(completed_, number);
    settle_completed();
    if (!requests_.empty()) services_.on_waiting();
  } else {
    // Those before it were done.
    completed_ = std::max(completed_, number - 1);
    settle_completed();
    break_off(refusal(completion.status));
  }
}

void Direct::break_off(bool refused) noexcept {
  connection_.reset();
  if (link_ != Link::ended) link_ = Link::none;
  send_failed_ = proven_useful_ = false;
  chained_ = 0;
  posted_ = completed_ = 0;
  unposted_ = 0;
  std::optional<std::uint64_t> key;  // of the one whose turn it was
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    const bool begun = std::exchange(request.posted, 0) != 0;
    request.last = 0;
    if (request.fate != Request::Fate::devices) continue;
    if (begun && !key) key = request.transfer.key;
    // What a device refuses it has not begun, nor what came behind. Otherwise nobody knows.
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
