#include "data/gather.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/locks/mutex.h"
#include "base/memory/copy_memory.h"
#include "base/memory/fault_guard.h"
#include "fabric/context/context.h"

namespace fab {
namespace {

constexpr std::size_t kBatch = 256;  // transfers to a post
// Samples of at least kLongRow bytes are copied past the caches in a job of at least kLongBatch bytes.
constexpr std::uint64_t kLongRow = 4096, kLongBatch = 16 * 1024 * 1024;

// Whether another holder is worth a try: this one has died, cannot be reached, or has closed its region.
bool holder_gone(Errc error) noexcept {
  return error == Errc::peer_lost || error == Errc::unreachable || error == Errc::key_rejected;
}

}  // namespace

// ----------------------------------------------------------------------------------------------- GatherPlan

GatherPlan::GatherPlan(std::vector<std::uint64_t> starts, std::vector<Field> fields, std::uint32_t holders)
    : starts_(std::move(starts)),
      shards_per_sample_(static_cast<double>(shards()) /
                         static_cast<double>(std::max<std::uint64_t>(size(), 1))),
      last_shard_(static_cast<std::uint32_t>(shards() - 1)),
      fields_(std::move(fields)),
      holders_(holders),
      lost_at_(new std::atomic<Clock::rep>[holders]()),
      read_(new std::atomic<std::uint64_t>[holders]()) {}

std::uint32_t GatherPlan::search(std::uint64_t sample) const noexcept {
  const auto after = std::ranges::upper_bound(starts_, sample);
  return static_cast<std::uint32_t>(after - starts_.begin() - 1);
}

void GatherPlan::measure(std::size_t field, std::span<const std::uint64_t> samples,
                         std::uint64_t* out) const noexcept {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    out[i] = total;
    const std::uint32_t shard = shard_of(samples[i]);
    const std::uint64_t* offsets = fields_[field].sources[shard].offsets + (samples[i] - starts_[shard]);
    total += offsets[1] - offsets[0];
  }
  out[samples.size()] = total;
}

// ------------------------------------------------------------------------------------------------ GatherJob

struct GatherJob::Request : Operation {
  GatherJob* job = nullptr;
  std::uint32_t field = 0, shard = 0;
  std::uint32_t place = 0;  // index in Source::places, of the holder that is asked
  std::uint32_t tried = 0;  // places before this index have failed
  Request* next = nullptr;  // in the list unposted_
  bool ran = false;         // has its outcome
};

GatherJob::GatherJob(std::shared_ptr<const GatherPlan> plan, std::shared_ptr<Context> context,
                     Operation& outcome, Wanted wanted, std::function<bool(std::shared_ptr<GatherJob>)> again)
    : plan_(std::move(plan)),
      context_(std::move(context)),
      outcome_(outcome),
      samples_(std::move(wanted.samples)),
      outputs_(std::move(wanted.outputs)),
      again_(std::move(again)) {
  group();
  for (std::uint32_t shard = 0; shard < plan_->shards(); ++shard)
    if (first_[shard] != first_[shard + 1]) request_count_ += plan_->fields().size();
  requests_ = std::make_unique<Request[]>(request_count_);
  std::size_t next = 0;
  Request** last = &unposted_;
  for (std::uint32_t shard = 0; shard < plan_->shards(); ++shard) {
    if (first_[shard] == first_[shard + 1]) continue;
    for (std::uint32_t field = 0; field < plan_->fields().size(); ++field) {
      Request& request = requests_[next++];
      request.job = this;
      request.field = field;
      request.shard = shard;
      *last = &request;
      last = &request.next;
    }
  }
  open_ = request_count_;
}

GatherJob::~GatherJob() = default;

// Sorts the samples by shard and keeps their order within each shard.
void GatherJob::group() {
  const std::size_t count = samples_.size();
  std::vector<std::uint32_t> shards(count);
  first_.assign(plan_->shards() + 1, 0);
  for (std::size_t i = 0; i < count; ++i) ++first_[(shards[i] = plan_->shard_of(samples_[i])) + 1];
  for (std::size_t s = 1; s < first_.size(); ++s) first_[s] += first_[s - 1];
  order_.resize(count);
  std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
  for (std::size_t i = 0; i < count; ++i) order_[next[shards[i]]++] = static_cast<std::uint32_t>(i);
}

const GatherPlan::Source& GatherJob::source(const Request& request) const noexcept {
  return plan_->fields()[request.field].sources[request.shard];
}

std::uint32_t GatherJob::choose(const GatherPlan::Source& source, std::uint32_t from) const noexcept {
  for (auto place = from; place < source.places.size(); ++place)
    if (!plan_->avoids(source.places[place].holder)) return place;
  return from;
}

bool GatherJob::wait_posted(Deadline deadline) const {
  UniqueLock lock(mutex_);
  const auto posted = [&]() FAB_REQUIRES(mutex_) { return posted_; };
  if (deadline.never()) {
    was_posted_.wait(lock.native(), posted);
    return true;
  }
  return was_posted_.wait_until(lock.native(), deadline.at(), posted);
}

bool GatherJob::troubled(Chunk& out) const {
  const LockGuard lock(mutex_);
  if (error_ != Errc::ok) {
    out = failed_;
    return true;
  }
  for (std::size_t i = 0; i < request_count_; ++i) {
    const Request& request = requests_[i];
    if (request.ran) continue;
    const auto& places = source(request).places;
    if (places.empty()) continue;
    out = {request.field, request.shard,
           places[std::min<std::size_t>(request.place, places.size() - 1)].holder};
    return true;
  }
  return false;
}

void GatherJob::post() noexcept {
  Request* first;
  {
    const LockGuard lock(mutex_);
    first = std::exchange(unposted_, nullptr);
    ++open_;
  }
  while (first) {
    Request* const request = std::exchange(first, std::exchange(first->next, nullptr));
    if (source(*request).places.empty()) {
      copy(request->field, request->shard);
      const LockGuard lock(mutex_);
      request->ran = true;
      --open_;
    } else {
      send(*request);
    }
  }
  bool last;
  Errc outcome;
  std::uint64_t bytes;
  {
    const LockGuard lock(mutex_);
    last = --open_ == 0;
    outcome = error_;
    bytes = bytes_;
    posted_ = true;
  }
  was_posted_.notify_all();
  if (last) context_->settle(outcome_, outcome, bytes);
}

bool GatherJob::goes_past_caches(std::uint64_t row) const noexcept {
  return row >= kLongRow && samples_.size() * row >= kLongBatch;
}

// Copies the samples of a shard that lies in this process.
void GatherJob::copy(std::uint32_t field, std::uint32_t shard) noexcept {
  const GatherPlan::Field& what = plan_->fields()[field];
  const GatherPlan::Source& from = what.sources[shard];
  const Output& to = outputs_[field];
  const std::uint64_t start = plan_->start(shard);
  const std::span rows(order_.data() + first_[shard], first_[shard + 1] - first_[shard]);
  std::uint64_t bytes = 0;
  bool there = false;
  if (what.row) {
    const bool past_caches = goes_past_caches(what.row);
    const auto source = [&](std::size_t i) { return from.local + (samples_[rows[i]] - start) * what.row; };
    there = guarded([&] {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i + 1 < rows.size()) prefetch_memory(source(i + 1), what.row);
        std::byte* const target = to.data + rows[i] * what.row;
        past_caches ? copy_streaming(target, source(i), what.row) : copy_memory(target, source(i), what.row);
      }
    });
    bytes = rows.size() * what.row;
  } else {
    const auto source = [&](std::size_t i) { return from.local + from.offsets[samples_[rows[i]] - start]; };
    const auto length = [&](std::size_t i) { return to.offsets[rows[i] + 1] - to.offsets[rows[i]]; };
    there = guarded([&] {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i + 1 < rows.size()) prefetch_memory(source(i + 1), length(i + 1));
        copy_memory(to.data + to.offsets[rows[i]], source(i), length(i));
      }
    });
    for (std::size_t i = 0; i < rows.size(); ++i) bytes += length(i);
  }
  const LockGuard lock(mutex_);
  if (there)
    bytes_ += bytes;
  else
    fail(Errc::bounds, {field, shard, plan_->holders()});
}

void GatherJob::fail(Errc error, const Chunk& chunk) noexcept {
  if (error_ != Errc::ok) return;
  error_ = error;
  failed_ = chunk;
}

void GatherJob::send(Request& request) noexcept {
  const GatherPlan::Field& what = plan_->fields()[request.field];
  const GatherPlan::Source& from = what.sources[request.shard];
  const Output& to = outputs_[request.field];
  const std::uint64_t start = plan_->start(request.shard);
  const std::span rows(order_.data() + first_[request.shard],
                       first_[request.shard + 1] - first_[request.shard]);
  request.place = choose(from, request.tried);
  const GatherPlan::Place& place = from.places[request.place];
  if (request.place != 0) plan_->count_replicas(rows.size());
  request.begin(
      {.transfers = static_cast<std::uint32_t>(rows.size()), .hook = [](Operation& operation) noexcept {
         auto& ended = static_cast<Request&>(operation);
         ended.job->ended(ended);
       }});
  Transfer row{};
  row.operation = &request;
  row.op = OpCode::read;
  row.delivery = Delivery::delivery;
  row.key = place.key;
  row.length = what.row;
  if (goes_past_caches(what.row)) row.flags = transfer_flag::kPastCaches;
  Transfer batch[kBatch];
  std::fill_n(batch, std::min(kBatch, rows.size()), row);
  for (std::size_t done = 0; done < rows.size();) {
    const std::size_t now = std::min(kBatch, rows.size() - done);
    for (std::size_t i = 0; i < now; ++i) {
      const std::uint32_t slot = rows[done + i];
      const std::uint64_t number = samples_[slot] - start;
      if (what.row) {
        batch[i].local = to.data + slot * what.row;
        batch[i].remote = place.remote + number * what.row;
      } else {
        batch[i].local = to.data + to.offsets[slot];
        batch[i].remote = place.remote + from.offsets[number];
        batch[i].length = to.offsets[slot + 1] - to.offsets[slot];
      }
    }
    std::span<const Transfer> rest(batch, now);
    try {
      Context::FullPath full;
      for (unsigned fruitless = 0; !rest.empty();) {
        const std::size_t taken = context_->post(place.peer, rest, full);
        rest = rest.subspan(taken);
        if (full.ended) throw Error(Errc::peer_lost, "the path that was waited for has ended");
        fruitless = taken ? 0 : fruitless + 1;
        if (!taken) context_->make_room(fruitless);
      }
    } catch (const std::exception& caught) {
      const auto* error = dynamic_cast<const Error*>(&caught);
      context_->abandon(request, static_cast<std::uint32_t>(rows.size() - done - now + rest.size()),
                        error ? error->code() : Errc::no_memory);
      return;
    }
    done += now;
  }
}

// Returns false if nobody will call post().
bool GatherJob::ask_for_post() noexcept try {
  return again_(shared_from_this());
} catch (const std::exception&) {
  return false;  // memory ran out
}

// Runs under the context's lock.
void GatherJob::ended(Request& request) noexcept {
  const Errc error = request.completion().error;
  const GatherPlan::Source& from = source(request);
  const std::uint32_t holder = from.places[request.place].holder;
  UniqueLock lock(mutex_);
  if (holder_gone(error)) {
    plan_->lose(holder);
    if (request.place + 1 < from.places.size()) {
      request.tried = request.place + 1;
      request.next = std::exchange(unposted_, &request);
      // Whoever posts the request may end and release this job before the lock is taken again.
      const auto self = weak_from_this().lock();
      lock.unlock();
      if (ask_for_post()) return;
      lock.lock();
      Request** at = &unposted_;
      while (*at && *at != &request) at = &(*at)->next;
      if (!*at) return;  // another call of post() has taken it meanwhile
      *at = std::exchange(request.next, nullptr);
    }
  }
  request.ran = true;
  if (error == Errc::ok) {
    bytes_ += request.completion().length;
    plan_->count(holder, request.completion().length);
  } else {
    fail(error, {request.field, request.shard, holder});
  }
  const Errc outcome = error_;
  const std::uint64_t bytes = bytes_;
  const bool last = --open_ == 0;
  lock.unlock();
  if (last) outcome_.settle(outcome, bytes);  // this job may be gone now
}

// --------------------------------------------------------------------------------------------- GatherWorker

bool GatherWorker::submit(std::shared_ptr<GatherJob> job) noexcept try {
  Jobs::Items one;
  one.push_back(std::move(job));
  return jobs_.push(one, true);
} catch (const std::exception&) {
  return false;  // no memory, or no more threads allowed
}

}  // namespace fab
