#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/ring_queue.h"
#include "fabric/flow.h"
#include "fabric/operation.h"
#include "fabric/provider.h"

namespace fab::lnx {

// Several network links to one peer, used as one: the sending side of docs/rails.md. Used under its context's
// lock.
class Rails final {
 public:
  struct Parameters {
    CompletionQueue& completions;            // for errors of what was injected
    double peer_deadline;                    // seconds, as in DomainOptions
    std::function<void()> on_work;           // pump() has something to do, or tick()
    std::function<void()> wake;              // and maybe nobody drives the context now
    std::optional<std::uint32_t> preferred;  // the rail for what is ordered, if it is up
    PeerId peer;
    Name name;
    std::uint16_t target;  // context of the peer
  };
  struct Link {
    Endpoint* endpoint;
    std::string tag;    // "tcp.0"
    double weight = 0;  // of the user; 0: what its bandwidth says
  };

  Rails(Parameters parameters, const std::vector<Link>& links);  // in order of preference, at most kMaxRails
  ~Rails();
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;

  // --- as in Path
  std::uint64_t resolve(const RemoteRegion& region);
  std::size_t post(std::span<const Transfer> batch) noexcept;
  Errc state() const noexcept { return state_; }
  PathCounts counts() const noexcept { return counts_; }
  PathReport report() const;

  // Posts what waits, as far as the rails take it; true if anything moved.
  bool pump() noexcept;
  // Tries rails that are down, and gives up when none is left. Returns when it wants to be called again.
  Clock::time_point tick() noexcept;
  // The endpoint closes: from now on nothing is repeated.
  void begin_end() noexcept { ending_ = true; }
  void fail(Errc error) noexcept;
  bool complete() const noexcept { return up() == rails_.size(); }  // no rail is down
  // Whether the links hold nothing of it any more.
  bool idle() const noexcept { return parts_open_ == 0; }

 private:
  struct Request;
  struct Part;
  struct Rail;
  struct Range {
    std::uint64_t offset, length;
  };

  static void on_part(Operation& operation) noexcept;
  void part_ended(Part& part) noexcept;
  void join_ended(Rail& rail, Errc error) noexcept;
  void finish(Request& request) noexcept;
  void finish_if_over(Request& request) noexcept;
  void notice() noexcept;

  bool repeat_lost() noexcept;
  bool look_after_rails() noexcept;
  void connect(Rail& rail) noexcept;
  void lose(Rail& rail) noexcept;
  bool send_notes() noexcept;
  bool usable(Rail& rail) noexcept;
  bool choose_primary() noexcept;
  Rail* best_rail(std::uint64_t bytes) noexcept;
  Rail* rail_for(const Request& request) noexcept;
  bool send_whole() noexcept;
  bool send_stripes() noexcept;
  bool send_stripe(Request& request, Rail& rail) noexcept;
  bool send_end(Request& request) noexcept;
  Transfer transfer_of(Request& request, Part& part) const noexcept;
  bool post_part(Rail& rail, std::unique_ptr<Part> part, const Transfer& transfer) noexcept;
  void track(Part& part) noexcept;
  void untrack(const Part& part) noexcept;
  std::unique_ptr<Part> new_part(Request* request);
  double weight(const Rail& rail) const noexcept;
  void measure(Rail& rail, const Part& part) noexcept;
  Rail& rail_of(const Part& part) noexcept;
  unsigned up() const noexcept;

  const Parameters parameters_;
  const FlowId flow_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* primary_ = nullptr;  // of what is ordered

  RingQueue<std::unique_ptr<Request>> open_;  // in the order of posting, until all before them are over
  std::vector<std::unique_ptr<Request>> spare_;
  std::deque<Request*> waiting_;   // for a rail, as a whole; in order
  std::deque<Request*> striping_;  // in order
  std::vector<Part*> lost_;        // ended with their rail
  std::vector<std::unique_ptr<Part>> spare_parts_;
  std::vector<std::uint64_t> known_messages_;  // announced ones whose end the peer may forget

  std::uint64_t next_number_ = 1;
  std::uint64_t unsettled_ = 0;     // numbers that ended since the peer was told
  std::size_t parts_open_ = 0;      // with the links
  std::size_t unordered_open_ = 0;  // requests under way beside the primary rail
  bool established_ = false;        // a rail has been up
  bool ending_ = false;
  bool noticed_ = false;
  Clock::time_point lost_since_;  // no rail is up
  Errc last_error_ = Errc::unreachable;
  Errc state_ = Errc::ok;
  PathCounts counts_;
};

// A share in the rails to a peer.
class RailedPath final : public Path {
 public:
  explicit RailedPath(std::shared_ptr<Rails> rails) : rails_(std::move(rails)) {}
  std::uint64_t resolve(const RemoteRegion& region) override { return rails_->resolve(region); }
  std::size_t post(std::span<const Transfer> batch) noexcept override { return rails_->post(batch); }
  Errc state() const noexcept override { return rails_->state(); }
  PathCounts counts() const noexcept override { return rails_->counts(); }
  PathReport report() const override { return rails_->report(); }

 private:
  std::shared_ptr<Rails> rails_;
};

}  // namespace fab::lnx
