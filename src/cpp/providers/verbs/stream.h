#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/memory/mapping.h"
#include "base/queues/linked_list.h"
#include "fabric/admission/pace.h"
#include "fabric/session/frames/handshake.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/connection/redials.h"
#include "providers/verbs/connection/shared_receives.h"

namespace fab::verbs {

class VerbsEndpoint;

struct StreamTurns;    // names the list of streams that wait for their turn
struct StreamRedials;  // names the list of streams that wait until they call again

// Frames between two endpoints, as messages of a queue pair. The byte stream of a session is cut into
// messages of at most kSlotBytes. A side has a credit for each free receive slot of the other side, and every
// message gives back the credits of slots that were emptied. Requests go only from the caller to the called
// side, so each direction has a stream of its own. A stream begins with a handshake (docs/wire.md).
class VerbsStream final : public ConnectionOwner, public Linked<StreamTurns>, public Linked<StreamRedials> {
 public:
  // `on_open` and `on_failed` are called at most once. on_failed comes after the session has settled all its
  // operations. `on_turn` is called after each turn of the stream.
  struct Told {
    std::function<void()> on_open;
    std::function<void()> on_turn;
    std::function<void(Errc)> on_failed;
  };
  // A stream that calls the peer, and proves that it has the authorization key with the index `key`.
  VerbsStream(VerbsEndpoint& endpoint, Part peer, EndpointAddress where, std::size_t key, Told told);
  // A stream that is called by a peer.
  VerbsStream(VerbsEndpoint& endpoint, Told told);
  ~VerbsStream();

  // These return ok, or why they failed at once.
  Errc call() noexcept;
  Errc answer(OwnId id, const rdma_conn_param& asked) noexcept;
  // Whether the time has come to call again after a call that ended; then redial() does.
  bool redial_due() const noexcept { return redial_at_.passed(); }
  void redial() noexcept;

  // Null in a called stream until the caller has proven who it is.
  Session* session() noexcept { return session_.get(); }
  const Session* session() const noexcept { return session_.get(); }
  const PathCounts& counts() const noexcept FAB_LIFETIME_BOUND { return counts_; }
  // They include what devices do without the stream.
  PathCounts& counts() noexcept FAB_LIFETIME_BOUND { return counts_; }
  Errc state() const noexcept { return state_; }
  bool open() const noexcept { return open_; }
  // The called side chooses it and tells it in its welcome. A call for a memory connection proves with it
  // that it belongs to this stream.
  std::uint64_t token() const noexcept { return token_; }
  std::string remote() const;
  std::uint64_t received() const noexcept { return received_; }  // the number of messages
  const EndpointAddress& where() const noexcept FAB_LIFETIME_BOUND { return where_; }
  std::size_t key() const noexcept { return key_; }  // the index of the authorization key
  // Whether what the peer has begun goes on.
  const Pace& pace() const noexcept FAB_LIFETIME_BOUND { return pace_; }
  // Whether a caller has proven that the id in where() is its own.
  bool proven() const noexcept { return answering_ && answering_->proven(); }

  // The session has something new to send. With `alone` it is sent at once; otherwise it may wait for the
  // next turn and share a message.
  void posted(bool alone) noexcept;
  void end_turn() noexcept;  // called after a round of completions
  bool flush() noexcept;
  void forget(std::uint32_t region) noexcept;
  // Whether something outside the stream, such as its devices, needs tick().
  void watch_for(bool waits) noexcept { others_wait_ = waits; }
  // Looks after deadlines. Returns whether the stream still needs that.
  bool tick() noexcept;
  void fail(Errc error) noexcept;
  void end_if_key_removed() noexcept;
  // Whether the endpoint has to wait before it ends, because messages of this side, or acks, may not have
  // left the device.
  bool leaving() const noexcept { return open_ && (session_->has_output() || free_slots_ != kSlots); }

  static constexpr std::size_t kSlotBytes = SharedReceives::kSlotBytes;

  // The time for the first answer over a new connection of iWARP. After it another connection is tried, which
  // gets twice as long.
  static constexpr std::chrono::milliseconds kAnswerTime{1250};

 private:
  static constexpr std::uint32_t kSlots = 16;
  static constexpr std::size_t kHeader = 8;  // 4 bytes: emptied slots; 1 byte: kind; the rest: zero

  enum class Kind : std::uint8_t { frames = 0, handshake = 1 };

  bool on_made() noexcept override;
  void on_connected() noexcept override;
  void on_closed(Errc why) noexcept override;
  void on_completion(const ibv_wc& completion) noexcept override;

  void make_connection();
  Errc dial() noexcept;
  bool dial_later(Errc why) noexcept;
  void heard_in_handshake(std::chrono::nanoseconds away = {}) noexcept;
  void make_session(Part peer);
  bool post_receive(std::uint32_t slot) noexcept;
  bool post(std::uint32_t slot, Kind kind, std::size_t bytes) noexcept;
  std::byte* send_slot(std::uint32_t slot) noexcept { return memory_.data() + slot * kSlotBytes; }
  std::byte* receive_slot(std::uint32_t slot) noexcept { return send_slot(kSlots + slot); }
  std::size_t fill(std::byte* to) noexcept;
  Errc take(const std::byte* bytes, std::size_t length) noexcept;
  Errc on_message(const std::byte* bytes, std::size_t length) noexcept;
  void send_handshake(const std::string& message) noexcept;
  void on_output() noexcept;
  void send_credits() noexcept;
  void send_sign_of_life() noexcept;
  bool half_frame_stays() noexcept;
  Errc on_handshake(std::string_view message);
  Errc answer_handshake(const Handshake::Step& step) noexcept;
  void admit(const AcceptorHandshake& caller);
  void become_open() noexcept;

  VerbsEndpoint& endpoint_;
  const Told told_;
  const bool caller_;
  EndpointAddress where_;    // of the peer
  SocketAddress called_at_;  // the one of its addresses that the present call goes to
  std::size_t key_ = 0;      // index of the authorization key
  PathCounts counts_;
  std::unique_ptr<Session> session_;
  Mapping memory_;
  OwnMr mr_;
  std::unique_ptr<Connection> connection_;
  Errc state_ = Errc::ok;
  Redials redials_;
  Deadline redial_at_;         // of a stream that waits until it calls again
  unsigned silent_calls_ = 0;  // connections of iWARP over which no answer came
  bool open_ = false;
  Errc broken_ = Errc::ok;  // an error found while sending, which end_turn() or tick() reports
  bool receiving_ = false;
  // Deadlines, of VerbsEndpoint::attended(): for the next sign of life, for the whole handshake, and for the
  // first answer over a connection of iWARP.
  std::chrono::nanoseconds handshake_until_{}, given_up_at_{}, answer_until_{};

  std::optional<CallerHandshake> calling_;      // of the present call
  std::optional<AcceptorHandshake> answering_;  // set if this side is called
  std::uint64_t token_ = 0;

  std::uint32_t free_slots_ = kSlots;  // send slots; they are used in turn, because sends complete in order
  std::uint32_t next_slot_ = 0;
  std::uint32_t credits_ = kSlots;  // free receive slots of the other side
  std::uint32_t owed_ = 0;          // slots emptied here that the other side has not been told of

  std::uint64_t received_ = 0;  // messages
  std::uint64_t moved_ = 0;     // bytes of frames, both ways
  Liveness liveness_;
  Liveness completes_frames_;  // the peer, those that it has begun
  Pace pace_;
  bool others_wait_ = false;
  std::chrono::nanoseconds sign_sent_at_{};  // of VerbsEndpoint::attended()
};

}  // namespace fab::verbs
