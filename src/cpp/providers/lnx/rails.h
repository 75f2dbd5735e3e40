#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/queues/linked_list.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/slice.h"
#include "fabric/messages/match_table.h"
#include "fabric/provider.h"
#include "fabric/session/flow.h"

namespace fab::lnx {

// Several network links to one peer, used as one: the sending side of docs/rails.md. Used under its context's
// lock. A request brings all the memory that it needs on its way, so that one that was accepted can be moved,
// repeated and ended without asking for more.
class Rails final : public Linked<struct RailsWork> {
 public:
  struct Parameters {
    CompletionQueue& completions;              // for errors of what was injected
    Slice& slice;                              // of the present turn
    double peer_deadline;                      // seconds, as in DomainOptions
    std::function<Clock::time_point()> clock;  // by which rails are tried again
    // By which silence is judged: as Ticker::attended(), so that an absence of this process is nobody's
    // fault. It goes on while something is watched.
    std::function<Clock::time_point()> attended;
    std::function<void(Rails&)> on_work;        // pump() has something to do, or tick()
    std::function<void()> on_watch;             // tick() wants to be called every kLook as long as watched()
    std::function<void(PeerId, Errc)> on_lost;  // the peer, as far as anybody can tell
    std::string preferred;                      // link for what is ordered, if it is up; empty: the first
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
  std::uint64_t oldest() const noexcept;  // as Path
  PathReport report() const;

  // The handle that completions and events name from now on.
  void known_as(PeerId peer) noexcept;
  const FlowId& flow() const noexcept { return flow_; }
  bool forgotten() const noexcept {  // by this side, which has no use for it
    return state_ != Errc::ok || (live_ == 0 && idle() && !known());
  }

  // Posts what waits, as far as the rails take it; true if anything moved.
  bool pump() noexcept;
  void hint(const RemoteRegion& region);
  // Tries rails that are down, and gives up when none is left. Returns when it wants to be called again.
  Clock::time_point tick() noexcept;
  // The endpoint closes: from now on nothing is repeated, and the peer may forget this side.
  void begin_end() noexcept;
  void fail(Errc error) noexcept;
  bool at_rest() const noexcept;  // tick() has nothing to look after
  bool watched() const noexcept { return watched_; }
  static constexpr double kLook = 0.02;  // seconds
  // Whether the links hold nothing of it any more.
  bool idle() const noexcept { return parts_open_ == 0; }

 private:
  struct Request;
  struct Rail;
  enum class PartKind { whole, stripe, end, join, fence, note, probe };
  enum class ProbeKind { sign_of_life, witness, trial };
  // Rails are compared by what they do at the same time: a race of the primary rail against the others, or an
  // exam of one that was set aside.
  enum class Trial { none, race, exam };
  enum class Queue { none, waiting, striping, notes };

  // What is posted on a rail.
  struct Part : FlowOperation {
    Rails* rails = nullptr;
    Request* request = nullptr;
    std::uint32_t slot = 0;
    PartKind kind = PartKind::whole;
    ProbeKind probe = ProbeKind::sign_of_life;
    bool under_way = false;           // with the link
    std::uint64_t length = 0;         // of a stripe or a whole
    std::uint64_t out = 0, back = 0;  // bytes that it moves to the peer and from there
    ListLink<Part> order;
    Clock::time_point posted{};  // attended
    std::uint32_t trial = 0;     // of which it is a part; 0: of none
  };
  struct Range {
    std::uint64_t offset, length;
  };
  // A transfer of the user. One that was announced becomes the note by which the peer may forget it.
  struct Request {
    Transfer transfer{};
    std::uint64_t place = 0;   // in the order of posting, from 1 on
    std::uint64_t number = 0;  // in the flow, from the first time on that it, or its end, is sent
    ListLink<Request> age, queue;
    Queue in = Queue::none;
    Errc error = Errc::ok;
    unsigned parts = 0;  // with the links
    bool ordered = false;
    bool striped = false;
    bool unordered_open = false;  // a put that is counted in unordered_open_
    bool end_sent = false;
    bool announced = false;
    bool sent_small = false;  // once: the peer may know it as a message that is not announced
    bool over = false;
    std::uint64_t next = 0;             // striped: bytes that were given to a rail once
    std::uint64_t stored = 0;           // striped: bytes that arrived
    std::vector<Range> holes;           // striped: lost with a rail; at most kMostHoles
    std::unique_ptr<std::byte[]> copy;  // of an injected one
    std::uint64_t context = 0;          // likewise: for an error
    std::uint32_t flags = 0;
    Part part;  // the whole, or the end of a striped one, or a note

    bool announced_now() const noexcept {
      return !sent_small && (announced || (part.under_way && part.kind == PartKind::whole && part.announced));
    }
  };
  using Requests = IntrusiveList<Request, &Request::queue>;
  using Parts = IntrusiveList<Part, &Part::order>;

  static void on_part(Operation& operation) noexcept;
  void part_ended(Part& part) noexcept;
  void request_part_ended(Rail& rail, Part& part, Errc error) noexcept;
  void lose(Part& part) noexcept;
  void join_ended(Rail& rail, Errc error) noexcept;
  void finish(Request& request) noexcept;
  void finish_if_over(Request& request) noexcept;
  void notice() noexcept;

  void note_ended(Part& note, Errc error) noexcept;
  bool known() const noexcept;

  bool look_after_rails() noexcept;
  void connect(Rail& rail) noexcept;
  void begin_anew(Rail& rail) noexcept;
  void lose(Rail& rail) noexcept;
  void lost_last(Clock::time_point now) noexcept;
  void rise(Rail& rail) noexcept;
  std::optional<Clock::time_point> earliest_up() const noexcept;

  // --- sick rails: lnx_rail_health.cpp
  void judge(Clock::time_point now) noexcept;
  void forgive(Rail& rail) noexcept;
  bool stalls(Rail& rail, Clock::time_point now) noexcept;
  static void doubt(Rail& rail) noexcept;
  void set_aside(Rail& rail) noexcept;
  void watch() noexcept;
  Clock::time_point next_look() noexcept;
  bool post_probe(Rail& rail, std::uint64_t out, std::uint64_t back, ProbeKind kind) noexcept;
  void probe_ended(Rail& rail, Part& probe, Errc error, Clock::time_point now) noexcept;
  void tally(Rail& rail, const Part& part, Clock::time_point now) noexcept;
  void begin_trial(Trial trial, Rail& tried) noexcept;
  void end_trial() noexcept;
  bool enters_race(Rail& rail, Part& part) noexcept;
  void scratch(Part& part) noexcept;
  void shadow(std::uint64_t out, std::uint64_t back) noexcept;
  void judge_race(Clock::time_point now) noexcept;
  void sit_exam(Clock::time_point now) noexcept;

  bool send_notes() noexcept;
  bool send_notes_on(Rail& rail, std::uint64_t mark) noexcept;
  bool send_note(Rail& rail, Part& part, std::uint64_t mark, Request* message) noexcept;
  bool usable(Rail& rail) noexcept;
  bool choose_primary() noexcept;
  Rail* best_rail(std::uint64_t bytes) noexcept;
  Rail* rail_for(const Request& request) noexcept;
  bool send_whole() noexcept;
  bool send_batch(Rail& rail, bool& full) noexcept;
  bool send_stripes() noexcept;
  bool send_stripe(Request& request, Rail& rail) noexcept;
  Range next_range(Request& request, const Rail& rail) noexcept;
  bool send_end(Request& request) noexcept;
  Transfer transfer_of(Request& request) noexcept;
  Request* new_request(const Transfer& transfer) noexcept;
  void recycle(Request& request) noexcept;
  Requests& list(Queue queue) noexcept;
  void leave_queue(Request& request) noexcept;
  void enqueue(Request& request, Queue queue) noexcept;
  void requeue(Request& request) noexcept;
  void begin(Part& part, PartKind kind, const Rail& rail, Request* request) noexcept;
  bool post_part(Rail& rail, Part& part, const Transfer& transfer) noexcept;
  bool post_control(Rail& rail, Part& part, PartKind kind, Transfer transfer,
                    Request* request = nullptr) noexcept;
  void track(Part& part) noexcept;
  void untrack(Part& part) noexcept;
  double weight(const Rail& rail) const noexcept;
  void measure(Rail& rail, const Part& part) noexcept;
  Rail& rail_of(const Part& part) noexcept;
  unsigned up() const noexcept;

  const Parameters parameters_;
  PeerId peer_;
  std::uint32_t generation_;
  FlowId flow_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* primary_ = nullptr;  // of what is ordered

  IntrusiveList<Request, &Request::age> open_;  // not over, in the order of posting; owns them
  std::size_t live_ = 0;
  Requests waiting_;   // for a rail, as a whole; in order
  Requests striping_;  // in order
  Requests notes_;     // were announced messages: the peer may forget them; owns them
  Requests spare_;     // owns them
  std::size_t spares_ = 0;
  Request* requeued_ = nullptr;  // the last one, if it is still in waiting_
  Part mark_part_;               // of a note that is of no message
  Parts spare_probes_;           // owns them

  std::uint64_t next_number_ = 1;
  std::uint64_t unsettled_ = 0;     // numbers that ended since the peer was told
  std::size_t parts_open_ = 0;      // with the links
  std::size_t unordered_open_ = 0;  // requests under way beside the primary rail
  std::uint64_t results_ = 0;       // result_cost() of what the peer may not have forgotten,
  std::uint64_t last_result_ = 0;   // and the last number of that kind
  bool established_ = false;        // a rail has been up
  bool answered_ = false;           // anything, since the last rail was lost
  bool lost_some_ = false;          // with a rail: nothing goes out before look_after_rails() fenced it off
  bool ending_ = false;

  Trial trial_ = Trial::none;
  Rail *tried_ = nullptr, *examiner_ = nullptr;
  std::uint32_t trial_number_ = 0;   // tells its parts from those of others
  Clock::time_point trial_since_{};  // attended
  unsigned trial_parts_ = 0;         // of a race: still to be posted; of an exam: for each of both rails
  unsigned races_lost_ = 0;          // by the primary rail, one after the other
  Clock::time_point race_at_{};      // when the next race may begin,
  Clock::duration race_pause_{};     // and how long that is after the last one
  bool watched_ = false;             // tick() will be called

  Clock::time_point lost_since_;  // no rail is up; attended
  Clock::time_point up_since_{};  // one of them is; attended
  Errc last_error_ = Errc::unreachable;
  Errc verdict_ = Errc::ok;  // why the next pump() ends it
  Errc state_ = Errc::ok;
  PathCounts counts_;
};

// A share in the rails to a peer.
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
