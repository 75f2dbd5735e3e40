#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/queues/ring_queue.h"
#include "fabric/session/link_operation.h"
#include "fabric/session/session.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/device/regions.h"

namespace fab::verbs {

class VerbsEndpoint;

// Puts, gets and atomics that the devices do between themselves, over a connection of their own: a request
// that the peer's device refuses ends that connection and nothing else. The request goes on through the
// stream, where the peer judges it in words; the others are repeated over a new connection.
// Transfers settle in the order in which they were taken. Used under the context's lock.
class Direct final : public ConnectionOwner {
 public:
  struct Services {
    std::function<Session*()> session;     // of the stream; null once it ended
    std::function<std::uint64_t()> token;  // of the peer; 0: not known yet
    // Whether the session has settled its puts, gets and updates up to this number (Path::oldest).
    std::function<bool(std::uint64_t)> settled_by_session;
    std::function<void()> on_posted;   // the session got something to send
    std::function<void()> on_waiting;  // work is left for pump()
    PathCounts& counts;                // which the session counts in too
  };
  Direct(VerbsEndpoint& endpoint, EndpointAddress peer, Services services);
  ~Direct();

  // Where a transfer belongs: here, which may turn out to be through the session after all, and then it was
  // taken; through the session; or nowhere until there is room. What was taken settles after what the session
  // got up to number `after`.
  enum class Way { devices, session, later };
  // What there is no memory for is taken, and settles in its turn with no_memory.
  Way take(const Transfer& transfer, std::uint64_t after) noexcept;
  // Processors of the peer do not reach the region with this key: what goes there waits for the devices.
  void expect_hidden(std::uint64_t key) { known_[key].hidden = true; }
  bool pump() noexcept;  // posts what was taken; true if anything

  // Looks after the deadline of a call; true while one is under way.
  bool tick() noexcept;

  std::size_t outstanding() const noexcept { return requests_.size(); }
  std::uint64_t oldest() const noexcept {  // as Path::oldest()
    return requests_.empty() ? services_.counts.posted + 1 : requests_.front().number;
  }
  std::uint64_t signs() const noexcept { return signs_; }  // of life of the peer's device
  void fail(Errc error) noexcept;

 private:
  static constexpr std::uint32_t kDepth = 128;  // work requests
  struct Known {
    enum class State : std::uint8_t {
      seen,      // used before
      asked,     // the peer, for its description
      told,      // which is this
      unknown,   // to the peer, when it was asked
      messages,  // only these reach it
    } state = State::seen;
    std::shared_ptr<const Description> description{};
    bool hidden = false;  // from the peer's processors
  };
  // A question of the session's. Its hook notes the answer.
  struct Question : LinkOperation, DestroyedLater {
    Direct* asker = nullptr;
    std::uint64_t key = 0;
    std::byte answer[kDescriptionBytes];
  };
  struct Repeat : LinkOperation {
    Direct* asker = nullptr;
  };
  // How far a request is.
  struct Course {
    std::uint64_t number = 0;             // as Path::oldest()
    std::uint64_t after = 0;              // see take()
    std::uint64_t offset = 0, whole = 0;  // of a stripe,
    bool stripe = false;                  // if it is one
    std::uint64_t context = 0;            // of the operation, for an error after it was settled
    std::uint32_t flags = 0;
    std::uint32_t array = 0;   // Operation::array(), of which an update may be a piece
    std::int32_t staged = -1;  // slot of the endpoint's staging memory
    std::uint32_t local_key = 0;
    std::uint64_t operand = 0, compare = 0;  // of an update
    std::uint64_t posted = 0;                // bytes
    std::uint64_t last = 0;                  // number of its last work request, once all are posted; else 0
    enum class Fate : std::uint8_t {
      undecided,  // more has to be known of the region
      devices,    // the devices do it
      session,    // the peer has to judge it
      repeated,   // the session has it
      lost,       // nothing more happens: `error` is its outcome
    } fate = Fate::undecided;
    Errc error = Errc::ok;
  };
  struct Request : Course {
    Transfer transfer{};
    std::shared_ptr<const Description> region{};
    RegistrationCache::Lease own{};  // of local memory that no region holds
  };
  enum class Link { none, connecting, connected, ended };

  void on_connected() noexcept override;
  void on_closed(Errc why) noexcept override;
  void on_completion(const ibv_wc& completion) noexcept override;

  void ask(std::uint64_t key, Known& known);  // has no effect if it throws
  void on_answer(Question& question) noexcept;
  static void learn(Known& known, Errc error, const std::byte* answer) noexcept;
  void on_repeated(const Completion& outcome) noexcept;
  bool connected() { return link_ == Link::connected || connect(); }
  bool connect();
  struct Choice {
    Way way;
    const std::shared_ptr<const Description>* region = nullptr;  // where it is `devices`
  };
  Choice choose(const Transfer& transfer, bool staged);
  std::pair<Known*, bool> look_up(std::uint64_t key) {  // and whether it is new
    if (recent_.second && recent_.first == key) return {recent_.second, false};
    return find(key);
  }
  std::pair<Known*, bool> find(std::uint64_t key);
  void forget_all() noexcept;
  Way refuse(const Transfer& transfer, std::uint64_t after) noexcept;
  bool decide(Request& request) noexcept;
  bool reach_local(Request& request);
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
  std::unique_ptr<Connection> connection_;
  Link link_ = Link::none;
  unsigned failed_calls_ = 0;  // one after the other
  // Of the connection, of its first request: by VerbsEndpoint::attended().
  std::chrono::nanoseconds call_until_{}, answer_until_{};
  bool proven_useful_ = false;  // the connection did something
  bool send_failed_ = false;
  std::uint64_t signs_ = 0;
  std::uint64_t settled_by_session_ = 0;  // as last asked
  std::unordered_map<std::uint64_t, Known> known_;
  std::pair<std::uint64_t, Known*> recent_{};  // the region that was looked up last
  std::vector<std::shared_ptr<Question>> questions_;
  Repeat repeat_;

  RingQueue<Request> requests_;  // not settled, oldest first; has a place for one from the beginning
  std::size_t unposted_ = 0;     // index of the first request that is not posted completely
  std::uint64_t posted_ = 0, completed_ = 0;  // work requests
  ibv_send_wr chain_[32];
  ibv_sge places_[32];
  std::size_t chained_ = 0;
  bool failed_ = false;
};

}  // namespace fab::verbs
