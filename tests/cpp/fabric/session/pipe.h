#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/slice.h"
#include "fabric/noncoherent/access_observer.h"
#include "fabric/session/link_operation.h"
#include "fabric/session/session.h"

// Two sessions joined by byte streams in memory, which are cut at random places.
namespace fab::test {

// What a side has besides its stream.
struct Helpers {
  DeviceAccess* device = nullptr;
  AccessObserver* observer = nullptr;
  MemoryReader* reader = nullptr;
  SmallMessages* small_messages = nullptr;
  AnnouncementLedger* ledger = nullptr;
  LinkCounters* counters = nullptr;
  Slice* slice = nullptr;
  ExtensionMaker* extensions = nullptr;
  std::function<void()> on_more{}, on_output{};
  Handover handover = Handover::at_once;
  bool notices = false;
};

// Beside Side, because some of what a session is given needs it before there is a session.
struct Receives {
  ReceiveQueue receives;
};

struct Side : virtual Receives {
  explicit Side(std::uint8_t number, Helpers have = {})
      : domain_id{number}, segment(Segment::create(domain_id)), helpers(std::move(have)) {
    segment.header().context_rights.of[0].events.store(1);
  }

  std::uint64_t expose(std::vector<iovec> buffers, std::uint32_t rights = access::kAll,
                       std::uint32_t flags = 0, bool enabled = true) {
    last_region = regions.insert({.key = kNoKey,
                                  .base = 0,
                                  .buffers = buffers,
                                  .access = rights,
                                  .flags = flags,
                                  .file = -1,
                                  .file_offset = 0,
                                  .enabled = enabled});
    return regions.entry(last_region).key;
  }
  // As a domain closes a region.
  void close(std::uint32_t region) {
    regions.start_close(region);
    session.forget(region);
    regions.finish_close(region);
  }

  std::uint8_t domain_id[16];
  Segment segment;
  Helpers helpers;
  RegionTable regions{segment.region_area()};
  CompletionQueue completions{1024, CompletionQueue::WhenFull::forget_oldest};
  PathCounts counts;
  int wakes = 0;
  std::function<void()> wake = [this] { ++wakes; };
  AddressVector peers;
  Session session{{.segment = segment,
                   .completions = completions,
                   .receives = receives,
                   .sender = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}},
                                                      kNoAuthKey, helpers.counters),
                   .context_slot = 0,
                   .counts = counts,
                   .wake_domain = wake,
                   .table = &regions,
                   .slice = helpers.slice,
                   .on_more = helpers.on_more,
                   .observer = helpers.observer,
                   .on_output = helpers.on_output,
                   .reader = helpers.reader,
                   .small_messages = helpers.small_messages,
                   .ledger = helpers.ledger,
                   .handover = helpers.handover,
                   .notices = helpers.notices,
                   .device = helpers.device,
                   .extensions = helpers.extensions}};
  std::uint32_t last_region = 0;
  std::string wire;  // sent by this side, not yet received by the other one
};

// Some of what a session has to send, cut anywhere.
inline void put_on_wire(std::mt19937& random, Session& from, std::string& wire) {
  iovec out[16];
  const std::size_t count = from.output(out, 1 + random() % 16);
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += out[i].iov_len;
  if (total == 0) return;
  const std::size_t bytes = random() % 4 ? total : 1 + random() % total;
  std::size_t left = bytes;
  for (std::size_t i = 0; i < count && left; ++i) {
    const std::size_t part = std::min(left, out[i].iov_len);
    wire.append(static_cast<const char*>(out[i].iov_base), part);
    left -= part;
  }
  from.sent(bytes);
}

// Some of a wire that is not empty.
inline Errc take_off_wire(std::mt19937& random, std::string& wire, Session& to) {
  iovec in[16];
  const std::size_t count = to.input(in, 2 + random() % 15);
  std::size_t room = 0;
  for (std::size_t i = 0; i < count; ++i) room += in[i].iov_len;
  std::size_t bytes = std::min(room, wire.size());
  if (random() % 4 == 0) bytes = 1 + random() % bytes;
  std::size_t done = 0;
  for (std::size_t i = 0; i < count && done < bytes; ++i) {
    const std::size_t part = std::min(bytes - done, in[i].iov_len);
    std::memcpy(in[i].iov_base, wire.data() + done, part);
    done += part;
  }
  wire.erase(0, bytes);
  return to.received(bytes);
}

// What a session makes of bytes that come to it. After `cut()` has become true no more come.
template <class Cut>
Errc hears(Session& session, const std::string& bytes, const Cut& cut) {
  for (std::size_t at = 0; at < bytes.size();) {
    iovec in[2];
    const std::size_t count = session.input(in);
    std::size_t got = 0;
    for (std::size_t i = 0; i < count && at < bytes.size(); ++i) {
      const std::size_t part = std::min(in[i].iov_len, bytes.size() - at);
      std::memcpy(in[i].iov_base, bytes.data() + at, part);
      at += part;
      got += part;
      if (part < in[i].iov_len) break;
    }
    if (const Errc error = session.received(got); error != Errc::ok) return error;
    if (cut()) return Errc::protocol;
  }
  return Errc::ok;
}

class Pipe {
 public:
  explicit Pipe(unsigned seed, Helpers of_b = {}, Helpers of_a = {})
      : random(seed), a(1, std::move(of_a)), b(2, std::move(of_b)) {}

  // Lengths of all sizes, small ones as often as large ones.
  std::size_t some_length(std::size_t most) {
    const std::size_t bound = std::size_t{1} << (random() % 24);
    return std::min(most, random() % bound);
  }

  void send(Side& from) { put_on_wire(random, from.session, from.wire); }
  Errc receive(Side& from, Side& to) {
    if (from.wire.empty()) return Errc::ok;
    const Errc error = take_off_wire(random, from.wire, to.session);
    if (random() % 2) to.session.end_turn();
    return error;
  }
  Errc turn() {
    send(a);
    send(b);
    Errc error = receive(a, b);
    if (error == Errc::ok) error = receive(b, a);
    return error;
  }
  // Until nothing moves any more.
  Errc run() {
    for (;;) {
      if (const Errc error = turn(); error != Errc::ok) return error;
      a.session.end_turn();
      b.session.end_turn();
      if (!a.session.has_output() && !b.session.has_output() && a.wire.empty() && b.wire.empty())
        return Errc::ok;
    }
  }

  std::mt19937 random;
  Side a, b;
};

inline iovec piece(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }
inline iovec piece(std::vector<std::byte>& bytes, std::size_t offset, std::size_t length) {
  return {bytes.data() + offset, length};
}

inline std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::size_t i = 0;
  for (; i + 4 <= size; i += 4) {
    const auto value = static_cast<std::uint32_t>(random());
    std::memcpy(&bytes[i], &value, 4);
  }
  for (; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

// An operation of one transfer that notes how often it was settled.
struct Probe {
  Operation operation;
  Transfer transfer{};

  Probe(OpCode op, std::uint64_t key, std::uint64_t remote, std::byte* local, std::uint64_t length) {
    operation.begin({.context = 77, .flags = completion_flag::kRma});
    transfer.operation = &operation;
    transfer.op = op;
    transfer.key = key;
    transfer.remote = remote;
    transfer.local = local;
    transfer.length = length;
    transfer.delivery = Delivery::delivery;
  }
  std::size_t post(Session& session) { return session.post({&transfer, 1}); }
  std::size_t post(Side& side) { return post(side.session); }
  bool done() const { return operation.done(); }
  Errc error() const { return operation.completion().error; }
  std::uint64_t length() const { return operation.completion().length; }
};

// The same of a request of a link, whose answer of `length` bytes goes to `answer`, or nowhere.
struct Control {
  LinkOperation operation;
  Transfer transfer{};

  explicit Control(const FrameHeader& frame, std::byte* answer = nullptr, std::uint64_t length = 0) {
    operation.begin({.context = 77});
    operation.frame = frame;
    transfer.operation = &operation;
    transfer.op = OpCode::control;
    transfer.local = answer;
    transfer.length = length;
  }
  std::size_t post(Side& side) { return side.session.post({&transfer, 1}); }
  bool done() const { return operation.done(); }
  Errc error() const { return operation.completion().error; }
};

}  // namespace fab::test
