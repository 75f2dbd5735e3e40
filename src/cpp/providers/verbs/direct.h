#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/deadline.h"
#include "base/queues/ring_queue.h"
#include "fabric/session/link_operation.h"
#include "fabric/session/session.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/connection/destroyed_later.h"
#include "providers/verbs/device/read_sinks.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/device/registrar.h"

namespace fab::verbs {

class VerbsEndpoint;

// The put or get that a stripe is a part of; for any other transfer, the transfer itself. `before` is the
// stripe's offset there, in bytes.
struct Whole {
  std::uint64_t before = 0, length = 0;
  explicit Whole(const Transfer& transfer) noexcept : length(transfer.length) {
    if (!is_stripe(transfer)) return;
    const FrameHeader& frame = link_operation(transfer).frame;
    before = frame.data;
    length = frame.id;
  }
};

// Puts, gets and atomics that the devices do between themselves, over a connection of their own. A request
// that the peer's device refuses ends that connection and nothing else. The session then repeats the request,
// so that the peer tells what is wrong with it; other requests are repeated over a new connection. Transfers
// settle in the order in which they were taken. Used under the context's lock.
class Direct final : public ConnectionOwner {
 public:
  struct Services {
    std::function<Session*()> session;     // of the stream; null when the stream has ended
    std::function<std::uint64_t()> token;  // that the peer chose for the stream; 0 if not known yet
    // Whether the session has settled its puts, gets and updates up to this number (Path::oldest).
    std::function<bool(std::uint64_t)> settled_by_session;
    std::function<void()> on_posted;   // called when the session has something new to send
    std::function<void()> on_waiting;  // called when there is work for pump()
    std::function<void()> on_pause;    // called when it is time for pump() in some milliseconds
    PathCounts& counts;                // of the path; the session counts there too
  };
  Direct(VerbsEndpoint& endpoint, EndpointAddress peer, Services services);
  ~Direct();

  // The way of a transfer. `devices`: it was taken here, and the session may still have to repeat it.
  // `session`: it has to be posted to the session. `later`: it was not taken, and has to be offered again.
  enum class Way { devices, session, later };
  // Takes a transfer, or says where it belongs. A taken transfer settles after all that the session got up to
  // number `after`. If memory runs out, the transfer is taken and settles with no_memory when its turn comes.
  Way take(const Transfer& transfer, std::uint64_t after) noexcept;
  // The peer's processors do not reach the region with this key, so its transfers wait for the devices.
  void expect_hidden(std::uint64_t key) { known_[key].hidden = true; }
  // Posts taken transfers to the device. Returns whether it posted any.
  bool pump() noexcept;

  // Looks after the deadlines of the connection. Returns whether a call is under way.
  bool tick() noexcept;

  std::size_t outstanding() const noexcept { return requests_.size(); }
  // Whether the peer owes something: not while memory of this side is being registered.
  bool waits_for_peer() const noexcept {
    return !requests_.empty() && (!requests_.front().loan || requests_.front().loan->over());
  }
  // Returns what Path::oldest() says.
  std::uint64_t oldest() const noexcept {
    return requests_.empty() ? services_.counts.posted + 1 : requests_.front().number;
  }
  // Whether the devices do nothing for now, because their connection failed again and again.
  bool rests() const noexcept { return link_ == Link::resting; }
  // A count of the signs of life of the peer and its device.
  std::uint64_t signs() const noexcept { return signs_; }
  void fail(Errc error) noexcept;

 private:
  static constexpr std::uint32_t kDepth = 128;  // work requests that may be under way
  // What is known of a region of the peer.
  struct Known {
    enum class State : std::uint8_t {
      seen,       // a transfer has used it before
      asked,      // the peer was asked for its description
      told,       // the peer has sent its description
      unknown,    // the peer answered that it has no such region
      preparing,  // the peer is registering it with its device; only messages reach it until then
    } state = State::seen;
    std::shared_ptr<const Description> description{};
    bool hidden = false;       // the peer's processors do not reach it
    bool by_messages = false;  // only messages reach it, as the peer has last said
    std::uint8_t uses = 0;     // by messages
    Deadline ask_again{};      // for a region that the peer is registering, or that only messages reach
  };
  // A `describe` request that the session carries. Its hook notes the answer.
  struct Question : LinkOperation, DestroyedLater {
    Direct* asker = nullptr;
    std::uint64_t key = 0;
    std::byte answer[kDescriptionBytes];
  };
  struct Repeat : LinkOperation {
    Direct* asker = nullptr;
  };
  // The state of a request.
  struct Course {
    std::uint64_t number = 0;  // as in Path::oldest()
    std::uint64_t after = 0;   // see take()
    // Of a stripe: where it lies in the whole put or get, and the length of that. Both in bytes.
    std::uint64_t offset = 0, whole = 0;
    bool stripe = false;
    // The operation's, for telling an error after the operation has settled.
    std::uint64_t context = 0;
    std::uint32_t flags = 0;
    std::uint32_t array = 0;         // Operation::array(): an update may be a piece of that array
    StagingMemory* slots = nullptr;  // where the bytes are staged, in slot `staged`; null: nowhere
    std::int32_t staged = 0;
    bool inlined = false;  // the bytes are copied from the caller's memory when the request is posted
    std::uint32_t local_key = 0;
    std::uint64_t operand = 0, compare = 0;  // of an update
    std::uint64_t posted = 0;                // bytes
    std::uint64_t last = 0;                  // number of its last work request; 0 until all are posted
    enum class Fate : std::uint8_t {
      undecided,  // the region is not known well enough yet
      devices,    // the devices do it
      session,    // the session has to repeat it
      repeated,   // the session is repeating it
      lost,       // nothing more happens, and `error` is its outcome
    } fate = Fate::undecided;
    Errc error = Errc::ok;
  };
  struct Request : Course {
    Transfer transfer{};
    std::shared_ptr<const Description> region{};
    RegistrationCache::Lease own{};  // on local memory that lies in no region
    std::shared_ptr<Loan> loan{};    // of such memory, while it is being registered
  };
  enum class Link { none, connecting, connected, resting, ended };

  void on_connected() noexcept override;
  void on_closed(Errc why) noexcept override;
  void on_completion(const ibv_wc& completion) noexcept override;

  // Has no effect if it throws.
  void ask(std::uint64_t key, Known& known);
  void ask_meanwhile(std::uint64_t key, Known& known) noexcept;
  void on_answer(Question& question) noexcept;
  static void learn(Known& known, Errc error, const std::byte* answer) noexcept;
  void on_repeated(const Completion& outcome) noexcept;
  bool connected() { return link_ == Link::connected || connect(); }
  // Whether messages do everything. Ends a rest that is over.
  bool by_messages() noexcept;
  bool connect();
  struct Choice {
    Way way;
    const std::shared_ptr<const Description>* region = nullptr;  // set if `way` is `devices`
  };
  Choice choose(const Transfer& transfer, bool staged);
  // Returns what is known of a region, and whether this is its first use.
  std::pair<Known*, bool> look_up(std::uint64_t key) {
    if (recent_.second && recent_.first == key) return {recent_.second, false};
    return find(key);
  }
  std::pair<Known*, bool> find(std::uint64_t key);
  void forget_all() noexcept;
  Way refuse(const Transfer& transfer, std::uint64_t after) noexcept;
  StagingMemory* large_slots_for(const Transfer& transfer) noexcept;
  static bool copy_operands(Request& request) noexcept;
  bool inlines(const Transfer& transfer) const noexcept;
  bool stage(Request& request, StagingMemory& slots) noexcept;
  bool decide(Request& request) noexcept;
  enum class Reach { now, later, never };
  Reach reach_local(Request& request);
  std::shared_ptr<Loan> lend_later(const iovec& whole, bool stores);
  bool copy_inline(ibv_sge& place) noexcept;
  void post(Request& request, bool& moved) noexcept;
  ibv_sge next_piece(const Request& request, const Description::Place& there);
  void describe(ibv_send_wr& work, const Request& request, const Description::Place& there,
                std::uint64_t length) const noexcept;
  bool send_chain() noexcept;
  bool repeat_front() noexcept;
  void give_up_call() noexcept;
  void settle_front(Errc error) noexcept;
  bool front_ended() noexcept;
  void settle_completed() noexcept {
    while (!requests_.empty() && front_ended()) settle_front(requests_.front().error);
  }
  void release(Request& request) noexcept;
  void break_off(bool refused) noexcept;

  VerbsEndpoint& endpoint_;
  const EndpointAddress peer_;
  const Services services_;
  const std::shared_ptr<ReadSinks> sinks_;  // null if it is not needed, or not to be had
  Staging& staging_;                        // of the endpoint, or of sinks_
  std::unique_ptr<Connection> connection_;
  Link link_ = Link::none;
  unsigned failed_calls_ = 0;  // since a request last succeeded
  // How long the devices rest once too many calls have failed, and until when. A success makes it short
  // again.
  static constexpr std::chrono::seconds kFirstRest{1}, kLongestRest{64};
  std::chrono::nanoseconds rest_ = kFirstRest;
  Deadline rests_until_;
  // Deadlines, of VerbsEndpoint::attended(): for the call, and for the first request of the connection.
  std::chrono::nanoseconds call_until_{}, answer_until_{};
  bool proven_useful_ = false;  // a request over the connection has succeeded
  bool send_failed_ = false;
  std::uint64_t signs_ = 0;
  // The highest `after` for which Services::settled_by_session has returned true.
  std::uint64_t settled_by_session_ = 0;
  std::unordered_map<std::uint64_t, Known> known_;
  std::pair<std::uint64_t, Known*> recent_{};  // the region that was looked up last
  std::vector<std::shared_ptr<Question>> questions_;
  Repeat repeat_;

  // Requests that have not settled, oldest first. The queue has room for one from the beginning, so that
  // refuse() can take a transfer when memory runs out.
  RingQueue<Request> requests_;
  std::size_t unposted_ = 0;                  // index of the first request that is not posted completely
  std::uint64_t posted_ = 0, completed_ = 0;  // counts of work requests
  ibv_send_wr chain_[Staging::kAtOnce];
  ibv_sge places_[Staging::kAtOnce];
  std::size_t chained_ = 0;
  bool failed_ = false;
};

}  // namespace fab::verbs
