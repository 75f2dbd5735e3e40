#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "base/queues/linked_list.h"
#include "fabric/session/frames/handshake.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/connection/shared_receives.h"

namespace fab::verbs {

class VerbsEndpoint;

struct StreamTurns;  // list of streams that wait for their turn

// Frames between two endpoints, as messages of a queue pair: the byte stream of a session is cut into pieces
// of at most kSlotBytes. A side has a credit for each free slot of the other one, and every message gives
// back the credits of the slots that were emptied. Requests go from the caller to the called side only, so
// each direction has its stream. It begins with a handshake (docs/wire.md).
class VerbsStream final : public ConnectionOwner, public Linked<StreamTurns> {
 public:
  // `on_open`, `on_failed`: once each; on_failed when the session has settled all it had. `on_turn`: after
  // each turn in which something moved.
  struct Told {
    std::function<void()> on_open;
    std::function<void()> on_turn;
    std::function<void(Errc)> on_failed;
  };
  // Calls, and proves the key of this index.
  VerbsStream(VerbsEndpoint& endpoint, Part peer, EndpointAddress where, std::size_t key, Told told);
  VerbsStream(VerbsEndpoint& endpoint, Told told);  // is called
  ~VerbsStream();

  // ok, or why that failed at once.
  Errc call() noexcept;
  Errc answer(OwnId id, const rdma_conn_param& asked) noexcept;

  // Null: called, and the caller did not say who it is.
  Session* session() noexcept { return session_.get(); }
  const Session* session() const noexcept { return session_.get(); }
  const PathCounts& counts() const noexcept { return counts_; }
  PathCounts& counts() noexcept { return counts_; }  // also of what devices do without the stream
  Errc state() const noexcept { return state_; }
  bool open() const noexcept { return open_; }
  // What a call for a memory connection must know: chosen by the called side, told in its welcome.
  std::uint64_t token() const noexcept { return token_; }
  std::string remote() const;
  std::uint64_t received() const noexcept { return received_; }  // messages
  const EndpointAddress& where() const noexcept { return where_; }
  std::size_t key() const noexcept { return key_; }  // its index

  void posted(bool alone) noexcept;  // the session has something to send
  void end_turn() noexcept;          // after a round of completions
  bool flush() noexcept;
  void forget(std::uint32_t region) noexcept;
  void watch_for(bool waits) noexcept { others_wait_ = waits; }  // as its devices may
  bool tick() noexcept;  // looks after deadlines; true if there is still something to look after
  void fail(Errc error) noexcept;
  // Before the endpoint ends: whether messages of this side may not have left the device.
  bool leaving() const noexcept {
    return open_ && session_->messages().owes() && (session_->has_output() || free_slots_ != kSlots);
  }

  static constexpr std::size_t kSlotBytes = SharedReceives::kSlotBytes;

  // How long the first answer over a new connection may take until another connection is tried.
  static constexpr std::chrono::milliseconds kAnswerTime{1250};

 private:
  static constexpr std::uint32_t kSlots = 16;
  static constexpr std::size_t kHeader = 8;  // emptied slots (4), kind (1), zero

  enum class Kind : std::uint8_t { frames = 0, handshake = 1 };

  bool on_made() noexcept override;
  void on_connected() noexcept override;
  void on_closed(Errc why) noexcept override;
  void on_completion(const ibv_wc& completion) noexcept override;

  void make_connection();
  Errc dial() noexcept;
  bool dial_again() noexcept;
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
  Errc on_handshake(std::string_view message);
  void admit();
  void become_open() noexcept;

  VerbsEndpoint& endpoint_;
  const Told told_;
  const bool caller_;
  EndpointAddress where_;  // the peer
  std::size_t key_ = 0;    // under which the stream stands
  PathCounts counts_;
  std::unique_ptr<Session> session_;
  Mapping memory_;
  OwnMr mr_;
  std::unique_ptr<Connection> connection_;
  Errc state_ = Errc::ok;
  unsigned calls_ = 0;
  bool open_ = false;
  Errc broken_ = Errc::ok;  // found while sending
  bool receiving_ = false;
  std::chrono::nanoseconds handshake_until_{}, answer_until_{};  // of all calls; of this one

  std::optional<CallerHandshake> calling_;      // of this call
  std::optional<AcceptorHandshake> answering_;  // where this side is called
  std::uint64_t token_ = 0;

  std::uint32_t free_slots_ = kSlots;  // free ones, used in turn: sends complete in order
  std::uint32_t next_slot_ = 0;
  std::uint32_t credits_ = kSlots;  // free slots of the other side
  std::uint32_t owed_ = 0;          // slots emptied here of which it does not know

  std::uint64_t received_ = 0;  // messages
  Liveness liveness_;
  bool others_wait_ = false;
  std::chrono::nanoseconds sign_sent_at_{};  // VerbsEndpoint::attended()
};

}  // namespace fab::verbs
