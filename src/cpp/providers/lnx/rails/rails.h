#pragma once

#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/queues/linked_list.h"
#include "providers/lnx/rails/health.h"
#include "providers/lnx/rails/journal.h"
#include "providers/lnx/rails/notes.h"
#include "providers/lnx/rails/parameters.h"
#include "providers/lnx/rails/rail.h"
#include "providers/lnx/rails/scheduler.h"

namespace fab::lnx {

// Several network links to one peer, used as one: the sending side of docs/rails.md. Used under its context's
// lock. A request is accepted with all the memory that it needs, so it can be moved, repeated and ended
// without more.
class Rails final : public Linked<struct RailsWork>, private RailsOwner {
 public:
  Rails(RailsParameters parameters,
        const std::vector<RailLink>& links);  // 1 to kMaxRails, the best one first
  ~Rails();
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;

  // --- as in Path
  std::size_t post(std::span<const Transfer> batch) noexcept;
  void hint(const RemoteRegion& region);
  Errc state() const noexcept { return state_; }
  PathCounts counts() const noexcept { return journal_.counts(); }
  std::uint64_t oldest() const noexcept { return journal_.oldest(); }
  PathReport report() const;

  // The handle that completions and events name from now on.
  void known_as(PeerId peer) noexcept;
  const FlowId& flow() const noexcept FAB_LIFETIME_BOUND { return flow_; }
  // Whether this side has no use for the rails any more.
  bool forgotten() const noexcept { return idle() && (state_ != Errc::ok || (journal_.empty() && !known())); }

  // Posts what waits, as far as the rails take it; true if anything moved.
  bool pump() noexcept;
  // Connects rails that are down, and gives the peer up when none is left. Returns when it wants to be called
  // again.
  Clock::time_point tick() noexcept;
  // The endpoint closes: from now on nothing is repeated. Tells the peer that it may forget this side.
  void begin_end() noexcept;
  void fail(Errc error) noexcept;
  bool at_rest() const noexcept;  // tick() has nothing to look after
  bool watched() const noexcept { return watched_; }
  static constexpr double kLook = 0.02;  // seconds
  // Whether the links hold nothing of it any more.
  bool idle() const noexcept { return rails_.idle(); }

 private:
  void ended(Rail& rail, Posting& posting) noexcept override;
  void notice() noexcept override { parameters_.on_work(*this); }
  void watch() noexcept override;
  void give_up(Rail& rail) noexcept override;
  void rise(Rail& rail) noexcept override;

  bool known() const noexcept;
  void request_ended(Rail& rail, Posting& posting) noexcept;
  void connect(Rail& rail) noexcept;
  void join_ended(Rail& rail, Errc error) noexcept;
  bool look_after_rails() noexcept;
  void refused(Rail& rail) noexcept;
  void lose(Rail& rail) noexcept;
  void tell_lost(const Loss& loss) noexcept;
  void lost_last() noexcept;
  bool gives_up_peer(Clock::time_point attended) const noexcept;
  Clock::time_point refused_until() const noexcept;

  const RailsParameters parameters_;
  PeerId peer_;
  std::uint32_t generation_;
  FlowId flow_;
  Journal journal_;
  RailSet rails_;
  Health health_;
  Scheduler scheduler_;
  Notes notes_;
  bool established_ = false;  // a rail has been up
  bool answered_ = false;     // a request has succeeded since the last rail was lost
  bool ending_ = false;
  bool watched_ = false;          // tick() will be called
  Clock::time_point lost_since_;  // since when no rail is up; by parameters.attended()
  Clock::time_point up_since_{};  // since when a rail is up; by parameters.clock()
  Errc last_error_ = Errc::unreachable;
  Errc verdict_ = Errc::ok;  // why the next pump() ends it
  Errc state_ = Errc::ok;
};

// A path over the rails to a peer, which several handles of that peer share.
class RailedPath final : public Path {
 public:
  explicit RailedPath(std::shared_ptr<Rails> rails) : rails_(std::move(rails)) {}
  void hint(const RemoteRegion& region) override { rails_->hint(region); }
  std::size_t post(std::span<const Transfer> batch) noexcept override { return rails_->post(batch); }
  Errc state() const noexcept override { return rails_->state(); }
  bool idle() const noexcept override {
    const PathCounts all = counts();
    return all.posted == all.settled;
  }
  PathCounts counts() const noexcept override { return rails_->counts(); }
  std::uint64_t oldest() const noexcept override { return rails_->oldest(); }
  PathReport report() const override { return rails_->report(); }

 private:
  std::shared_ptr<Rails> rails_;
};

}  // namespace fab::lnx
