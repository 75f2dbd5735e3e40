#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "base/bytes/sha256.h"
#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "providers/shm/announcements.h"
#include "providers/shm/attach.h"
#include "providers/shm/layout.h"
#include "providers/shm/peer_domain.h"

namespace fab::shm {

// Makes the proof in ChannelHeader::proof: the initiator has the key `secret`, and opens this very channel.
// Zero without a key.
Digest channel_proof(const std::string& secret, const Address& initiator, std::uint16_t context,
                     std::uint16_t target_context_slot, const std::uint8_t (&target_domain)[16]);

// One session over two rings in a shared memory file. It carries what the peer must do itself.
class Channel final : private MemoryReader, private SmallMessages {
 public:
  // The context at the other end.
  struct Peer {
    std::shared_ptr<PeerDomain> domain;
    std::uint16_t context_slot;
  };
  // Makes the initiator's side. `self` is its own address, and `context` its Part::context. The key that it
  // proves is that of the sender in `services`. `direct` reads messages by cross-memory attach; it outlives
  // the channel, and may be null. Throws std::system_error.
  static std::unique_ptr<Channel> create(Peer peer, const Address& self, std::uint16_t context,
                                         Session::Services services, AttachBatch* direct);
  // A channel file as the target finds it. Its descriptor is not kept: others could show it as a file of this
  // process.
  struct Offer {
    Mapping mapping;
    FileId file;
    Address initiator;
    std::uint16_t initiator_context;
    std::uint32_t published;  // the channel's number in the initiator's segment
    MadeChannel made;         // what is to be found there
    ProvenKey key;            // by the initiator
  };
  // Opens the channel that `slot` shows to the context in `context_slot` of `domain_id`. Throws
  // Error(protocol) if it is no channel, or one that this context has closed, and Error(key_rejected) if its
  // maker has none of `keys`.
  static Offer open(const AccessSlot& slot, std::uint16_t context_slot, const std::uint8_t (&domain_id)[16],
                    const AuthKeys& keys);
  // Makes the target's side. From now on, what the initiator has sent outlives the initiator. Throws
  // Error(peer_lost) if the initiator has given up meanwhile.
  static std::unique_ptr<Channel> accept(Offer offer, std::shared_ptr<PeerDomain> peer,
                                         Session::Services services, AttachBatch* direct);

  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int fd() const noexcept { return file_.get(); }
  Session& session() noexcept { return *session_; }
  PeerDomain& peer() noexcept { return *peer_; }
  // Moves bytes between session and rings, both ways; true if any moved. Stops when the slice is spent:
  // pending() is true if there is more to take in then.
  bool move() noexcept;
  void flush() noexcept;  // moves bytes outwards only; to be called after posting, too
  // Initiator: whether notify() has room in the ring. If not, the target is asked to tell when it has read
  // some.
  bool may_notify() noexcept;
  // Initiator: tells the target of a put that is done, so that it learns of it even if this process ends at
  // once. To be called after may_notify(), with nothing sent in between. False: no memory.
  bool notify(const Transfer& put) noexcept;
  // Does what NoticeHolder::note() says.
  bool note() noexcept {
    noted_ = in_.seen_written();
    return in_.position() < noted_;
  }
  bool take_noted() noexcept;
  bool pending() const noexcept { return pending_; }
  // Target: takes in the messages of the eager ring; true if there were any.
  bool take_messages() noexcept;
  bool messages_ready() const noexcept { return eager_in_.ready(); }
  // Whether take_messages() has taken any since this was asked last.
  bool took_messages() noexcept { return std::exchange(took_messages_, false); }
  // Target: with `on`, the initiator need not tell of messages in the eager ring while this context is awake.
  void poll_messages(bool on) noexcept { eager_in_.poll(on); }
  // Initiator: whether messages that the target has not read would be lost with this end of the channel.
  bool unread() const noexcept;
  // Initiator: whether the target has the channel open, so that what is put into it arrives as long as the
  // target lives.
  bool taken() const noexcept;
  // ok, or why nothing moves any more: protocol (the peer sent what no peer may send), peer_lost (the peer
  // closed the channel, or was silent for too long), no_memory.
  Errc error() const noexcept { return error_; }
  // To be called several times per `patience`. Sets error() to peer_lost if the peer owed something and was
  // silent for that long. `more`: the peer owes something that the session does not know of. True while the
  // peer owes something.
  bool check(std::chrono::nanoseconds now, std::chrono::nanoseconds patience, bool more) noexcept;
  // The initiator gives up: everything outstanding settles with `why`, or with the target's outcome where the
  // target was first.
  void give_up(Errc why) noexcept;

 private:
  // Without a `file` this is the target's side, which does not keep one.
  Channel(OwnFd file, Mapping mapping, Peer peer, Session::Services services, AttachBatch* direct);
  void look_at_hold() noexcept;
  void look_at_memory() noexcept;
  void read(std::span<Read> reads) noexcept override;
  std::size_t read_first(std::span<Read> reads) noexcept;
  bool push(const Transfer& transfer) noexcept override;
  std::uint32_t number() noexcept override;
  bool come_to(std::uint32_t number) noexcept override;
  bool take_message() noexcept;
  bool take_in() noexcept;
  enum class Cost { slice, none };
  bool send_out(Cost cost = Cost::slice) noexcept;

  // The initiator's word for its channel, in the segment of its domain, as long as there is the channel.
  class Publication {
   public:
    Publication(Segment& segment, std::uint64_t inode, const MadeChannel& channel)
        : segment_(segment), number_(segment.publish(inode, channel)) {}
    ~Publication() { segment_.withdraw(number_); }
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;
    std::uint32_t number() const noexcept { return number_; }

   private:
    Segment& segment_;
    const std::uint32_t number_;
  };

  const OwnFd file_;  // the initiator's
  Mapping mapping_;
  std::optional<Publication> publication_;
  std::shared_ptr<PeerDomain> peer_;
  const std::uint16_t peer_context_slot_;
  const bool initiator_;
  RingWriter out_;
  RingReader in_;
  Slice& slice_;
  const std::function<void()> on_more_;
  EagerWriter eager_out_;  // the initiator's
  EagerReader eager_in_;   // the target's
  Announcements announcements_;
  AttachBatch* const direct_;
  AttachProof proof_;
  std::unique_ptr<Session> session_;
  bool held_ = false;  // the target has the file, as far as the initiator knows
  Liveness liveness_;
  std::uint64_t received_ = 0;
  std::uint64_t noted_ = 0;  // place in the ring
  bool took_messages_ = false;
  bool moving_ = false;   // move() is running, and sends what the session has to say
  bool untold_ = false;   // there are messages in the eager ring of which the target was not told
  bool pending_ = false;  // the last move() has left something to take in
  Errc error_ = Errc::ok;
};

}  // namespace fab::shm
