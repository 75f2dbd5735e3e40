#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "fabric/completion/completion_queue.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/provider.h"
#include "fabric/segment/segment.h"
#include "fabric/session/extension.h"
#include "fabric/session/frames/frame.h"

// What a session needs of its link, its context and its domain.
namespace fab {

// Reads announced messages from the memory of the process at the other end, where the link can do that.
class MemoryReader {
 public:
  struct Read {
    std::span<const iovec> from{};
    PieceCursor to{};
    std::uint64_t begin = 0, length = 0;  // bytes, the same on both sides
    Errc outcome = Errc::not_supported;   // not_supported: reading is not possible, and nothing was read
  };
  virtual ~MemoryReader() = default;
  virtual void read(std::span<Read> reads) noexcept = 0;
};

// The receiver of an announced message may get its bytes at the moment at which the sender gives up. Where
// both ends of a stream share memory, this ledger decides which of them was first, and the other one goes by
// that. So both are told the same outcome, and bytes that the sender changed afterwards are never taken for
// the message.
class AnnouncementLedger {
 public:
  virtual ~AnnouncementLedger() = default;
  // --- the sender's side
  // Returns a number for another announcement. At most kMaxOutstanding are open at a time.
  virtual std::uint64_t open() noexcept = 0;
  // The receiver has released the announcement.
  virtual void end(std::uint64_t number) noexcept = 0;
  // Takes the announcement back, before the sender's operation is told lost. False: the receiver was first.
  virtual bool revoke(std::uint64_t number) noexcept = 0;
  // --- the receiver's side
  // Whether the sender has not taken the announcement back so far.
  virtual bool stands(std::uint64_t number) const noexcept = 0;
  // The receiver has the bytes, or does not want them. False: the sender was first, and the bytes that were
  // read mean nothing.
  virtual bool take(std::uint64_t number) noexcept = 0;
};

// From when on the peer gets the bytes that were handed to a stream even if this process ends. Operations
// with Delivery::transmit settle then.
enum class Handover : std::uint8_t {
  at_once,       // the bytes lie in memory of the peer
  when_held,     // the bytes lie in memory that the peer has yet to open: Session::held()
  when_answered  // the bytes may lie in buffers that are lost with this process
};

// A faster way than the stream for small messages. Either both ends have it or neither.
class SmallMessages {
 public:
  virtual ~SmallMessages() = default;
  // Sends a message, whose bytes are copied before this returns. The caller sees to it that the peer is
  // woken. False: the message has to go through the stream.
  virtual bool push(const Transfer& transfer) noexcept = 0;
  // Gives a number to a message that goes through the stream, so that the receiver can keep the order.
  virtual std::uint32_t number() noexcept = 0;
  // Message `number` has come through the stream: hands all messages before it to Session::accept(). False:
  // they are not there, and the peer has broken the protocol.
  virtual bool come_to(std::uint32_t number) noexcept = 0;
};

// The target's side of a device by which peers reach the target's memory without its processor. Called under
// the context's lock.
class DeviceAccess {
 public:
  virtual ~DeviceAccess() = default;
  // Writes kDescriptionBytes that the peer's device needs to reach the region. Returns `again` if the device
  // is not ready for that yet, so who asks should ask later. After other errors the device cannot reach the
  // region. Requests have to come as frames then, and meanwhile.
  virtual Errc describe(std::uint32_t region, std::byte* out) noexcept = 0;
  // The processor is about to update the region atomically. From the return of this on no device does so.
  virtual void claim_atomics(std::uint32_t region) noexcept = 0;
};

struct SessionServices {
  Segment& segment;                // regions that the peer may reach
  CompletionQueue& completions;    // for remote data that arrives
  ReceiveQueue& receives;          // for messages
  std::shared_ptr<Sender> sender;  // the peer at the other end
  std::uint16_t context_slot;      // of this side's context, to whose endpoint regions may be bound
  PathCounts& counts;  // of the path; `settled` rises with the answer, even if the operation settled before
  const std::function<void()>& wake_domain;
  const RegionTable* table = nullptr;  // the regions as their owner sees them; null: as any peer does
  // What is sent, received and read spends the slice. The owner of the session stops when it is spent.
  Slice* slice = nullptr;
  std::function<void()> on_more{};     // the slice was spent: the owner calls go_on() in the next turn
  AccessObserver* observer = nullptr;  // is told of accesses to regions that are kObserved
  std::function<void()> on_output{};   // there is something to send that no post() or received() has led to
  MemoryReader* reader = nullptr;      // either both ends have one or neither
  SmallMessages* small_messages = nullptr;
  AnnouncementLedger* ledger = nullptr;  // either both ends have one or neither
  Handover handover = Handover::at_once;
  bool notices = false;  // the peer may move the bytes of puts itself, and tell of them by notices
  std::size_t largest_message = kMaxMessage;  // bytes of an eager message; longer messages are announced
  DeviceAccess* device = nullptr;
  ExtensionMaker* extensions = nullptr;
  std::function<void()> on_cut{};  // ends the stream, for ExtensionHost::cut()
};

}  // namespace fab
