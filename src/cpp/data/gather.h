#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "base/process/worker.h"
#include "fabric/completion/operation.h"
#include "fabric/types/types.h"

namespace fab {

class Context;

// Where the samples of a data set lie: in shards, each held by one or more processes. Only what was learned
// of the holders ever changes. Safe from any thread. Keeps no memory alive.
class GatherPlan final {
 public:
  // A copy of one field of one shard in a peer's memory.
  struct Place {
    PeerId peer;
    std::uint64_t key, remote;  // of the first byte, as in a Transfer
    std::uint32_t holder;       // number of the process, below `holders`
  };
  // One field of one shard.
  struct Source {
    const std::byte* local = nullptr;  // if it lies in this process; `places` is empty then
    std::uint64_t nbytes = 0;          // of all its samples
    // Where each sample of a ragged field begins, in bytes, and the end of the last.
    const std::uint64_t* offsets = nullptr;
    std::vector<Place> places;  // in order of preference
  };
  struct Field {
    std::uint64_t row;            // bytes of a sample; 0 if the field is ragged
    std::vector<Source> sources;  // by shard
  };

  // `starts` has the number of each shard's first sample, and at its end the count of all samples.
  GatherPlan(std::vector<std::uint64_t> starts, std::vector<Field> fields, std::uint32_t holders);

  std::uint64_t size() const noexcept { return starts_.back(); }
  std::size_t shards() const noexcept { return starts_.size() - 1; }
  const std::vector<Field>& fields() const noexcept FAB_LIFETIME_BOUND { return fields_; }
  std::uint64_t start(std::uint32_t shard) const noexcept { return starts_[shard]; }
  std::uint32_t shard_of(std::uint64_t sample) const noexcept {
    // Most data sets have shards of about equal size, so the guess is usually right.
    const auto guess =
        std::min(static_cast<std::uint32_t>(static_cast<double>(sample) * shards_per_sample_), last_shard_);
    if (starts_[guess] <= sample && sample < starts_[guess + 1]) return guess;
    return search(sample);
  }
  // For samples of a ragged field. Sets out[i] to the bytes of all samples before the i-th, and
  // out[samples.size()] to the bytes of all.
  void measure(std::size_t field, std::span<const std::uint64_t> samples, std::uint64_t* out) const noexcept;

  // Whether the last request to a holder failed because it has gone.
  bool lost(std::uint32_t holder) const noexcept { return lost_at_[holder].load() != 0; }
  // Whether a holder was lost less than kAvoid ago, so that it is not asked again yet.
  bool avoids(std::uint32_t holder) const noexcept {
    const auto at = lost_at_[holder].load(std::memory_order_relaxed);
    return at != 0 && Clock::now().time_since_epoch() - Clock::duration(at) < kAvoid;
  }
  void lose(std::uint32_t holder) const noexcept {
    lost_at_[holder] = Clock::now().time_since_epoch().count();
  }
  // Counts bytes that were read from a holder, of any field.
  void count(std::uint32_t holder, std::uint64_t bytes) const noexcept {
    if (lost(holder)) lost_at_[holder] = 0;  // it is back
    read_[holder].fetch_add(bytes, std::memory_order_relaxed);
  }
  std::uint64_t bytes_read(std::uint32_t holder) const noexcept { return read_[holder].load(); }
  std::uint32_t holders() const noexcept { return holders_; }
  // Counts samples that were asked of another holder than the preferred one, once for each field.
  void count_replicas(std::uint64_t samples) const noexcept { replicas_.fetch_add(samples); }
  std::uint64_t replica_samples() const noexcept { return replicas_.load(); }

 private:
  std::uint32_t search(std::uint64_t sample) const noexcept;

  std::vector<std::uint64_t> starts_;
  double shards_per_sample_;
  std::uint32_t last_shard_;
  std::vector<Field> fields_;
  std::uint32_t holders_;
  static constexpr std::chrono::seconds kAvoid{30};
  std::unique_ptr<std::atomic<Clock::rep>[]> lost_at_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> read_;
  mutable std::atomic<std::uint64_t> replicas_{0};
};

// Samples on their way into place. There is one request per field and shard; it is repeated to another holder
// if its holder is lost. Whoever posts and whoever waits each hold a shared_ptr until `outcome` is done.
class GatherJob final : public std::enable_shared_from_this<GatherJob> {
 public:
  struct Output {
    std::byte* data;                         // where the first sample goes
    const std::uint64_t* offsets = nullptr;  // of a ragged field: as measure() gives them
  };
  struct Wanted {
    std::vector<std::uint64_t> samples;  // all below plan.size()
    std::vector<Output> outputs;         // one for each field, each large enough
  };
  // `outcome` has begun with one transfer. It settles when no request is open any more, with the first error
  // if there was one. `again` is called under the context's lock when post() has to be called once more; it
  // returns false if nobody will do that.
  GatherJob(std::shared_ptr<const GatherPlan> plan, std::shared_ptr<Context> context, Operation& outcome,
            Wanted wanted, std::function<bool(std::shared_ptr<GatherJob>)> again);
  ~GatherJob();

  // Copies what lies in this process and posts the rest. Waits while a path is full. Only one thread at a
  // time may call it.
  void post() noexcept;
  // Waits until post() has run once: before that nobody needs to drive the context. Returns false when the
  // time is over.
  bool wait_posted(Deadline deadline) const;

  struct Chunk {
    std::uint32_t field, shard;
    std::uint32_t holder;  // the plan's holders(): it is memory of this process
  };
  // Tells which chunk failed first or, if none has failed, one that is still open. Returns false if there is
  // neither.
  bool troubled(Chunk& out) const;

 private:
  struct Request;
  void group();
  bool goes_past_caches(std::uint64_t row) const noexcept;
  void fail(Errc error, const Chunk& chunk) noexcept FAB_REQUIRES(mutex_);
  void copy(std::uint32_t field, std::uint32_t shard) noexcept;
  void send(Request& request) noexcept;
  void ended(Request& request) noexcept;
  bool ask_for_post() noexcept;
  const GatherPlan::Source& source(const Request& request) const noexcept;
  // The first place from `from` on whose holder is not avoided, or `from` if all are.
  std::uint32_t choose(const GatherPlan::Source& source, std::uint32_t from) const noexcept;

  const std::shared_ptr<const GatherPlan> plan_;
  const std::shared_ptr<Context> context_;
  Operation& outcome_;
  const std::vector<std::uint64_t> samples_;
  const std::vector<Output> outputs_;
  const std::function<bool(std::shared_ptr<GatherJob>)> again_;
  std::vector<std::uint32_t> order_;  // indices in samples_, sorted by shard
  std::vector<std::uint32_t> first_;  // where each shard begins in order_, and the end
  std::unique_ptr<Request[]> requests_;
  std::size_t request_count_ = 0;

  // Guards what follows. It may be taken under the context's lock; that lock is never taken under it.
  mutable Mutex mutex_;
  mutable std::condition_variable was_posted_;
  bool posted_ FAB_GUARDED_BY(mutex_) = false;
  Request* unposted_ FAB_GUARDED_BY(mutex_) = nullptr;  // the first of a list, by Request::next
  std::size_t open_ FAB_GUARDED_BY(mutex_) =
      0;  // requests without an outcome, and one more while post() runs
  std::uint64_t bytes_ FAB_GUARDED_BY(mutex_) = 0;
  Errc error_ FAB_GUARDED_BY(mutex_) = Errc::ok;
  Chunk failed_ FAB_GUARDED_BY(mutex_){};
};

// Posts jobs on a thread of its own, in order. Safe from any thread.
class GatherWorker final {
 public:
  // Starts the thread on first use. Returns false if the job will never be posted: after stop(), or if there
  // is no memory or no thread.
  bool submit(std::shared_ptr<GatherJob> job) noexcept;
  // Posts the jobs that wait, and ends the thread. The jobs fail if the context has been closed.
  void stop() noexcept { jobs_.stop(); }

 private:
  using Jobs = Worker<std::shared_ptr<GatherJob>>;
  Jobs jobs_{"pyfab-gather", [](std::shared_ptr<GatherJob>& job) noexcept { job->post(); }};
};

}  // namespace fab
