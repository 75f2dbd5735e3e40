#include "providers/verbs/path.h"

#include <algorithm>

#include "providers/verbs/endpoint.h"

namespace fab::verbs {

VerbsLink::VerbsLink(VerbsEndpoint& endpoint, Part peer, const EndpointAddress& where, std::size_t key)
    : endpoint_(endpoint),
      stream_(endpoint, std::move(peer), where, key,
              {.on_open = [this] { endpoint_.turn_later(*this); },
               .on_turn =
                   [this] {
                     if (direct_.outstanding() != 0) endpoint_.turn_later(*this);
                   },
               .on_failed = [this](Errc error) { on_stream_failed(error); }}),
      direct_(endpoint, where,
              {.session = [this] { return state() == Errc::ok ? stream_.session() : nullptr; },
               .token = [this] { return stream_.token(); },
               .settled_by_session =
                   [this](std::uint64_t number) {
                     const Session* const session = stream_.session();
                     return !session || session->requests().oldest() > number;
                   },
               .on_posted = [this] { stream_.posted(true); },
               .on_waiting = [this] { endpoint_.turn_later(*this); },
               .on_pause = [this] { endpoint_.later().links(); },
               .counts = stream_.counts()}) {}

VerbsLink::~VerbsLink() { fail(Errc::canceled); }

void VerbsLink::call() noexcept {
  if (const Errc error = stream_.call(); error != Errc::ok) stream_.fail(error);
}

void VerbsLink::on_stream_failed(Errc error) noexcept {
  direct_.fail(error);
  endpoint_.retire(*this);
}

std::uint64_t VerbsLink::oldest() const noexcept {
  const Session* const session = stream_.session();
  const std::uint64_t of_stream = session ? session->oldest() : Initiator::kNone;
  return std::min({direct_.oldest(), of_stream, stream_.counts().posted + 1});
}

namespace {

// Whether a transfer waits until the devices have done the puts before it. Ordered messages do, because the
// peer may hear of them only after those puts (docs/messages.md). Puts, gets and updates do, so that they
// settle in the order in which they were posted.
bool follows_puts(const Transfer& transfer) noexcept {
  return transfer.op != OpCode::send || (transfer.flags & transfer_flag::kUnordered) == 0;
}

}  // namespace

std::size_t VerbsLink::post(std::span<const Transfer> batch) noexcept {
  if (state() != Errc::ok) {
    stream_.counts().refuse(batch);
    for (const Transfer& transfer : batch) transfer.operation->settle(state(), 0);
    return batch.size();
  }
  const bool alone = stream_.session()->requests().outstanding() == 0;
  bool by_session = false;
  std::size_t posted = 0;
  while (posted < batch.size() && state() == Errc::ok) {
    const Direct::Way way = direct_.take(batch[posted], last_rma_);
    if (way == Direct::Way::devices) {
      ++posted;
      continue;
    }
    if (way == Direct::Way::later || state() != Errc::ok) break;
    if (follows_puts(batch[posted]) && direct_.outstanding() != 0) break;
    const std::uint64_t number = stream_.counts().posted + 1;
    if (stream_.session()->post(batch.subspan(posted, 1)) == 0) break;
    if (batch[posted].op != OpCode::send && batch[posted].op != OpCode::control) last_rma_ = number;
    by_session = true;
    ++posted;
  }
  if (by_session && state() == Errc::ok) stream_.posted(alone);
  if (direct_.outstanding() != 0) {
    endpoint_.watch();
    direct_.pump();
  }
  return posted;
}

bool VerbsLink::pump() noexcept { return state() == Errc::ok && direct_.pump(); }

// A working device answers or reports an error. This finds peers whose device does neither.
bool VerbsLink::tick() noexcept {
  const bool calls = direct_.tick();
  const bool waits = direct_.waits_for_peer();
  stream_.watch_for(direct_.outstanding() != 0 || calls);
  const auto patience = Liveness::patience(endpoint_.deadlines(), stream_.session()->one_of_several());
  if (devices_.look(waits, direct_.signs() + stream_.received(), endpoint_.attended(), patience) ==
      Liveness::Verdict::lost)
    stream_.fail(Errc::peer_lost);
  return stream_.tick();
}

}  // namespace fab::verbs
