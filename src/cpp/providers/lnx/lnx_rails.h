#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "fabric/flow.h"
#include "fabric/match_table.h"
#include "fabric/operation.h"
#include "fabric/provider.h"

namespace fab::lnx {

// Several network links to one peer, used as one: the sending side of docs/rails.md. Used under its context's
// lock.
class Rails final {
 public:
  struct Parameters {
    CompletionQueue& completions;                     // for errors of what was injected
    double peer_deadline;                             // seconds, as in DomainOptions
    std::function<void(Rails&)> on_work;              // pump() has something to do, or tick()
    std::function<void(Clock::time_point)> on_watch;  // tick() wants to be called then
    std::function<void(PeerId, Errc)> on_lost;        // the peer, as far as anybody can tell
    std::string preferred;  // link for what is ordered, if it is up; empty: the first
    const AddressVector& peers;
    PeerId peer;
    FlowId flow;  // greater than that of former rails to this peer
    Name name;
    std::uint16_t target;  // context of the peer
    std::size_t key;       // index of the authorization key
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
  std::size_t post(std::span<const Transfer> batch) noexcept;
  Errc state() const noexcept { return state_; }
  PathCounts counts() const noexcept;
  PathReport report() const;

  // The handle that completions and events name from now on.
  void known_as(PeerId peer) noexcept;
  const FlowId& flow() const noexcept { return flow_; }
  bool forgotten() const noexcept {  // by this side, which has no use for it
    return state_ != Errc::ok || (live_ == 0 && idle() && !known());
  }

  // Posts what waits, as far as the rails take it; true if anything moved.
  bool pump() noexcept;
  std::uint64_t resolve(const RemoteRegion& region);
  // Tries rails that are down, and gives up when none is left. Returns when it wants to be called again.
  Clock::time_point tick() noexcept;
  // The endpoint closes: from now on nothing is repeated, and the peer may forget this side.
  void begin_end() noexcept;
  void fail(Errc error) noexcept;
  bool at_rest() const noexcept;  // tick() has nothing to look after
  // Whether the links hold nothing of it any more.
  bool idle() const noexcept { return parts_open_ == 0; }

 private:
  struct Part;
  enum class PartKind { whole, stripe, end, join, fence, note, probe };
  struct Rail;
  struct Range {
    std::uint64_t offset, length;
  };
  // A transfer of the user.
  struct Request {
    Transfer transfer{};
    std::uint64_t place = 0;   // in the order of posting, from 1 on
    std::uint64_t number = 0;  // in the flow, from the first time on that it, or its end, is sent
    ListLink<Request> age;
    Errc error = Errc::ok;
    unsigned parts = 0;  // with the links, or lost with one
    bool ordered = false;
    bool striped = false;
    bool unordered_open = false;  // a put that is counted in unordered_open_
    bool end_sent = false;
    bool announced = false;
    bool sent_small = false;  // once: the peer may know it as a message that is not announced
    bool over = false;
    const Part* whole = nullptr;        // with a link, as a whole
    std::uint64_t next = 0;             // striped: bytes that were given to a rail once
    std::uint64_t stored = 0;           // striped: bytes that arrived
    std::vector<Range> holes;           // striped: lost with a rail
    std::unique_ptr<std::byte[]> copy;  // of an injected one
    std::uint64_t context = 0;          // likewise: for an error
    std::uint32_t flags = 0;
  };

  // Rails are compared by what they do at the same time: a race of the primary rail against the others, or an
  // exam of one that was set aside.
  enum class Trial { none, race, exam };
  enum class ProbeKind { sign_of_life, witness, trial };

  static void on_part(Operation& operation) noexcept;
  void part_ended(Part& part) noexcept;
  void join_ended(Rail& rail, Errc error) noexcept;
  void finish(Request& request) noexcept;
  void finish_if_over(Request& request) noexcept;
  void notice() noexcept;

  void note_ended(const Part& note, Errc error) noexcept;
  bool known() const noexcept;

  bool repeat_lost() noexcept;
  bool look_after_rails() noexcept;
  void connect(Rail& rail) noexcept;
  void begin_anew(Rail& rail) noexcept;
  void lose(Rail& rail) noexcept;
  void rise(Rail& rail) noexcept;

  // --- sick rails: lnx_rail_health.cpp
  void judge(Clock::time_point now) noexcept;
  static void forgive(Rail& rail, Clock::time_point now) noexcept;
  bool stalls(Rail& rail, Clock::time_point now) noexcept;
  void set_aside(Rail& rail) noexcept;
  void watch() noexcept;
  Clock::time_point next_look(Clock::time_point now) noexcept;
  bool post_probe(Rail& rail, std::uint64_t out, std::uint64_t back, ProbeKind kind) noexcept;
  void probe_ended(Rail& rail, const Part& probe, Errc error, Clock::time_point now) noexcept;
  void tally(Rail& rail, const Part& part, Clock::time_point now) noexcept;
  void begin_trial(Trial trial, Rail& tried, Clock::time_point now) noexcept;
  void end_trial() noexcept;
  bool enters_race(Rail& rail, Part& part) noexcept;
  void scratch(Part& part) noexcept;
  void shadow(std::uint64_t out, std::uint64_t back) noexcept;
  void judge_race(Clock::time_point now) noexcept;
  void sit_exam(Clock::time_point now) noexcept;

  bool send_notes() noexcept;
  bool usable(Rail& rail) noexcept;
  bool choose_primary() noexcept;
  Rail* best_rail(std::uint64_t bytes) noexcept;
  Rail* rail_for(const Request& request) noexcept;
  bool send_whole() noexcept;
  bool send_stripes() noexcept;
  bool send_stripe(Request& request, Rail& rail) noexcept;
  bool send_end(Request& request) noexcept;
  Transfer transfer_of(Request& request, Part& part) noexcept;
  Request& new_request();
  bool post_control(Rail& rail, PartKind kind, Transfer transfer) noexcept;
  bool post_part(Rail& rail, std::unique_ptr<Part> part, const Transfer& transfer) noexcept;
  void track(Part& part) noexcept;
  void untrack(Part& part) noexcept;
  std::unique_ptr<Part> new_part(Request* request);
  double weight(const Rail& rail) const noexcept;
  void measure(Rail& rail, const Part& part, Clock::time_point now) noexcept;
  Rail& rail_of(const Part& part) noexcept;
  unsigned up() const noexcept;

  const Parameters parameters_;
  PeerId peer_;
  std::uint32_t generation_;
  FlowId flow_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* primary_ = nullptr;  // of what is ordered

  IntrusiveList<Request, &Request::age> open_;  // not over, in the order of posting; owns them
  std::vector<std::unique_ptr<Request>> spare_;
  std::size_t live_ = 0;
  std::deque<Request*> waiting_;   // for a rail, as a whole; in order
  std::deque<Request*> striping_;  // in order
  std::vector<Part*> lost_;        // ended with their rail
  std::vector<std::unique_ptr<Part>> spare_parts_;
  std::vector<std::uint64_t> known_messages_;  // announced ones whose end the peer may forget

  std::uint64_t next_number_ = 1;
  std::uint64_t unsettled_ = 0;     // numbers that ended since the peer was told
  std::size_t parts_open_ = 0;      // with the links
  std::size_t unordered_open_ = 0;  // requests under way beside the primary rail
  std::uint64_t results_ = 0;       // result_cost() of what the peer may not have forgotten,
  std::uint64_t last_result_ = 0;   // and the last number of that kind
  bool established_ = false;        // a rail has been up
  bool answered_ = false;           // anything, since the last rail was lost
  bool ending_ = false;
  bool noticed_ = false;

  Trial trial_ = Trial::none;
  Rail *tried_ = nullptr, *examiner_ = nullptr;
  std::uint32_t trial_number_ = 0;  // tells its parts from those of others
  Clock::time_point trial_since_{};
  unsigned trial_parts_ = 0;      // of a race: still to be posted; of an exam: for each of both rails
  unsigned races_lost_ = 0;       // by the primary rail, one after the other
  Clock::time_point race_at_{};   // when the next race may begin,
  Clock::duration race_pause_{};  // and how long that is after the last one
  bool watched_ = false;          // tick() will be called

  Clock::time_point lost_since_;  // no rail is up
  Clock::time_point up_since_{};  // one of them is
  Errc last_error_ = Errc::unreachable;
  Errc verdict_ = Errc::ok;  // why the next pump() ends it
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
  bool idle() const noexcept override {
    const PathCounts all = counts();
    return all.posted == all.settled;
  }
  PathCounts counts() const noexcept override { return rails_->counts(); }
  PathReport report() const override { return rails_->report(); }

 private:
  std::shared_ptr<Rails> rails_;
};

}  // namespace fab::lnx
