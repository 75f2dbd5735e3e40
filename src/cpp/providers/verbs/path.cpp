#include "providers/verbs/path.h"

#include <algorithm>

#include "providers/verbs/endpoint.h"

namespace fab::verbs {

VerbsLink::VerbsLink(VerbsEndpoint& endpoint, Part peer, const Whereabouts& where, std::size_t key)
    : endpoint_(endpoint),
      stream_(endpoint, std::move(peer), where, key,
              {.on_open = [this] { endpoint_.pump_later(*this); },
               .on_turn =
                   [this] {
                     if (direct_.outstanding() != 0) endpoint_.pump_later(*this);
                   },
               .on_failed = [this](Errc error) { on_stream_failed(error); }}),
      direct_(endpoint, where,
              {.session = [this] { return state() == Errc::ok ? stream_.session() : nullptr; },
               .token = [this] { return stream_.token(); },
               .by_session = [this] { return session_settled(); },
               .on_hidden = [this] { ++hidden_settled_; },
               .on_posted = [this] { stream_.posted(true); },
               .on_waiting = [this] { endpoint_.pump_later(*this); },
               .counts = direct_counts_}) {
  runs_.reserve(1);
}

VerbsLink::~VerbsLink() { fail(Errc::canceled); }

void VerbsLink::call() noexcept {
  if (const Errc error = stream_.call(); error != Errc::ok) stream_.fail(error);
}

void VerbsLink::on_stream_failed(Errc error) noexcept {
  direct_.fail(error);
  endpoint_.retire(*this);
}

// Before anything is posted, so that what was posted can be noted. False: no memory; what settles makes room.
bool VerbsLink::room_for_run() noexcept {
  const std::size_t before = runs_.size();
  try {
    runs_.reserve(before + 1);
    return true;
  } catch (const std::exception&) {
    advance();
  }
  return runs_.size() < before;
}

void VerbsLink::ran(bool direct, std::uint64_t count) noexcept {
  if (count == 0) return;
  if (!runs_.empty() && runs_.back().direct == direct) {
    runs_.back().count += count;
    return;
  }
  advance();
  runs_.push_back({direct, count});
}

void VerbsLink::advance() const noexcept {
  while (!runs_.empty()) {
    Run& run = runs_.front();
    std::uint64_t& used = run.direct ? direct_used_ : session_used_;
    const std::uint64_t settled = run.direct ? direct_counts_.settled : session_settled();
    const std::uint64_t part = std::min(run.count, settled - used);
    used += part;
    settled_ += part;
    run.count -= part;
    if (run.count != 0) return;
    runs_.pop_front();
  }
}

PathCounts VerbsLink::counts() const noexcept {
  advance();
  const PathCounts& session = stream_.counts();
  return {.posted = direct_counts_.posted + by_session_ + refused_,
          .settled = settled_ + refused_,
          .bytes_out = direct_counts_.bytes_out + session.bytes_out,
          .bytes_in = direct_counts_.bytes_in + session.bytes_in,
          .errors = direct_counts_.errors + session.errors};
}

namespace {

// Messages of which the peer may only hear when the puts before them are there (docs/messages.md), and all
// that is no message, so that puts, gets and updates settle in the order in which they were posted.
bool follows_puts(const Transfer& transfer) noexcept {
  return transfer.op != OpCode::send || (transfer.flags & transfer_flag::kUnordered) == 0;
}

}  // namespace

std::size_t VerbsLink::post(std::span<const Transfer> batch) noexcept {
  if (state() != Errc::ok) {
    refused_ += batch.size();
    direct_counts_.errors += batch.size();
    for (const Transfer& transfer : batch) transfer.operation->settle(state(), 0);
    return batch.size();
  }
  const bool alone = stream_.session()->outstanding() == 0;
  const std::uint64_t by_session = by_session_;
  std::size_t posted = 0;
  while (posted < batch.size() && state() == Errc::ok && room_for_run()) {
    const Direct::Way way = direct_.take(batch[posted], last_rma_);
    if (way == Direct::Way::devices) {
      ++direct_counts_.posted;
      ran(true, 1);
      ++posted;
      continue;
    }
    if (way == Direct::Way::later || state() != Errc::ok) break;
    if (follows_puts(batch[posted]) && direct_.outstanding() != 0) break;
    const std::size_t taken = stream_.session()->post(batch.subspan(posted, 1));
    ran(false, taken);
    if (taken == 0) break;
    posted += taken;
    by_session_ += taken;
    if (batch[posted - 1].op != OpCode::send) last_rma_ = by_session_;
  }
  if (by_session_ != by_session && state() == Errc::ok) stream_.posted(alone);
  if (direct_.outstanding() != 0) {
    endpoint_.watch();
    direct_.pump();
  }
  return posted;
}

bool VerbsLink::pump() noexcept { return state() == Errc::ok && direct_.pump(); }

// A device that is there answers or tells; this is for those that do neither.
bool VerbsLink::tick() noexcept {
  const bool calls = direct_.tick();
  const bool waits = direct_.outstanding() != 0;
  stream_.watch_for(waits || calls);
  const auto now = endpoint_.attended();
  const std::uint64_t heard = direct_.signs() + stream_.received();
  if (!std::exchange(waited_, waits) || !waits || std::exchange(heard_, heard) != heard) heard_at_ = now;
  if (std::chrono::duration<double>(now - heard_at_).count() >= endpoint_.deadline(stream_.session()->rail()))
    stream_.fail(Errc::peer_lost);
  return stream_.tick();
}

}  // namespace fab::verbs
