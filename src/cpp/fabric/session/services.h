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

// Reads memory of the process at the other end, where the transport can: announced messages.
class MemoryReader {
 public:
  struct Read {
    std::span<const iovec> from{};
    PieceCursor to{};
    std::uint64_t begin = 0, length = 0;  // bytes, on either side
    Errc outcome = Errc::not_supported;   // that: not possible here, nothing was read
  };
  virtual ~MemoryReader() = default;
  virtual void read(std::span<Read> reads) noexcept = 0;
};

// Where both ends of a stream share memory: which of them was first, when the receiver of an announced
// message has its bytes while the sender gives up. The second one goes by it, so that both are told the same,
// and the sender's memory is not taken for the message once the sender may use it again.
class AnnouncementLedger {
 public:
  virtual ~AnnouncementLedger() = default;
  // The sender's side. A number for another announcement, at most kMaxOutstanding at a time.
  virtual std::uint64_t open() noexcept = 0;
  // The receiver released it.
  virtual void end(std::uint64_t number) noexcept = 0;
  // Takes it back, before anybody is told that it is lost. False: the receiver was first.
  virtual bool revoke(std::uint64_t number) noexcept = 0;
  // The receiver's side. Whether the sender has not taken it back so far.
  virtual bool stands(std::uint64_t number) const noexcept = 0;
  // The bytes are here, or nobody wants them. False: the sender was first, and they may be anything.
  virtual bool take(std::uint64_t number) noexcept = 0;
};

// When the peer has what was handed to a stream, whatever becomes of this process: Delivery::transmit.
enum class Handover : std::uint8_t {
  at_once,       // it lies in the peer's memory
  when_held,     // it will, once the peer holds that memory: Session::held()
  when_answered  // it may lie in buffers that go with this process
};

// A faster way for small messages beside a stream. Both ends have one, or neither.
class SmallMessages {
 public:
  virtual ~SmallMessages() = default;
  // Sends a message, complete when this returns; whoever posts it sees to it that the peer is told. False: it
  // has to go through the stream.
  virtual bool push(const Transfer& transfer) noexcept = 0;
  // The number of one that goes through the stream.
  virtual std::uint32_t number() noexcept = 0;
  // Message `number` comes through the stream: hands over all before it to Session::accept(). False: they are
  // not there, which no peer may do.
  virtual bool come_to(std::uint32_t number) noexcept = 0;
};

// The target's side of a device that reaches its memory without it. Called under the context's lock.
class DeviceAccess {
 public:
  virtual ~DeviceAccess() = default;
  // Fills kDescriptionBytes for the peer's device. False: only messages reach the region.
  virtual bool describe(std::uint32_t region, std::byte* out) noexcept = 0;
  // The CPU is about to update the region atomically: on return no device does, nor will later.
  virtual void claim_atomics(std::uint32_t region) noexcept = 0;
};

struct SessionServices {
  Segment& segment;                // regions that the peer may reach
  CompletionQueue& completions;    // for remote data that arrives
  ReceiveQueue& receives;          // for messages
  std::shared_ptr<Sender> sender;  // the other end
  std::uint16_t context_slot;      // of the context, which regions may be bound to
  PathCounts& counts;  // kept for the path; `settled` counts answers, whenever an operation settled
  const std::function<void()>& wake_domain;
  Slice* slice = nullptr;  // spent by what is sent, received and read; the owner stops where it is spent
  std::function<void()> on_more{};     // the slice was spent: go_on() in the next turn
  AccessObserver* observer = nullptr;  // of regions that are kObserved
  std::function<void()> on_output{};   // there is something to send, outside of post() and received()
  MemoryReader* reader = nullptr;      // both ends have one, or neither
  SmallMessages* small_messages = nullptr;
  AnnouncementLedger* ledger = nullptr;  // both ends have one, or neither
  Handover handover = Handover::at_once;
  std::size_t largest_message = kMaxMessage;  // bytes; longer ones are announced
  DeviceAccess* device = nullptr;
  ExtensionMaker* extensions = nullptr;
  std::function<void()> on_cut{};  // ExtensionHost::cut()
};

}  // namespace fab
