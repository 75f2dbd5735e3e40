#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/session/pipe.h"
#include "input.h"

// What a session with a hostile peer works on, and the frames of that peer: the frame fuzzers share it.
namespace fab::test {

inline constexpr std::size_t kBytes = 4096, kGuard = 64;

// Registered memory between guards that nobody may write.
struct Guarded {
  std::array<std::byte, kGuard + kBytes + kGuard> all{};
  std::byte* begin() { return all.data() + kGuard; }
  void fill() {
    all.fill(std::byte{0xA5});
    std::fill_n(begin(), kBytes, std::byte{0});
  }
  bool whole() const {
    static const std::array<std::byte, kGuard> untouched = [] {
      std::array<std::byte, kGuard> bytes;
      bytes.fill(std::byte{0xA5});
      return bytes;
    }();
    return std::memcmp(all.data(), untouched.data(), kGuard) == 0 &&
           std::memcmp(all.data() + kGuard + kBytes, untouched.data(), kGuard) == 0;
  }
  bool zero() {
    static const std::array<std::byte, kBytes> zeros{};
    return std::memcmp(begin(), zeros.data(), kBytes) == 0;
  }
};

// The owner of a domain, which is made once: its regions, one for each thing that may not happen.
struct Owner {
  Owner() {
    segment.header().context_rights.of[0].events.store(1);
    keys[0] = regions.entry(expose(writable, access::kAll)).key;
    keys[1] = regions.entry(expose(readable, access::kRemoteRead)).key;
    const std::uint32_t last = expose(closed, access::kAll);
    keys[2] = regions.entry(last).key;
    regions.start_close(last);
    regions.finish_close(last);
  }
  std::uint32_t expose(Guarded& memory, std::uint32_t rights) {
    const iovec buffers[] = {{memory.begin(), kBytes}};
    return regions.insert({.key = kNoKey,
                           .base = 0,
                           .buffers = buffers,
                           .access = rights,
                           .flags = 0,
                           .file = -1,
                           .file_offset = 0,
                           .enabled = true});
  }
  // Before and after each input.
  void begin() {
    for (Guarded* memory : {&writable, &readable, &closed, &local}) memory->fill();
  }
  void check() {
    for (const Guarded* memory : {&writable, &readable, &closed, &local})
      demand(memory->whole(), "nothing outside of registered memory was written");
    demand(readable.zero(), "a region without the right was not written");
    demand(closed.zero(), "a closed region was not written");
  }
  Guarded writable, readable, closed, local;
  std::uint8_t domain_id[16] = {1};
  Segment segment = Segment::create(domain_id);
  RegionTable regions{segment.region_area()};
  AddressVector peers;
  std::uint64_t keys[4] = {};
  std::function<void()> wake = [] {};
};
inline Owner& owner() {
  static Owner made;
  return made;
}

// Small numbers, numbers near the ends of the memory, and any others.
inline std::uint64_t number(Input& input) {
  const std::uint8_t kind = input.byte();
  if (kind < 128) return kind;
  if (kind < 160) return kBytes + 16 - kind % 32;
  if (kind < 192) return input.get<std::uint16_t>();
  if (kind < 200) return ~std::uint64_t{0} - kind % 8;
  return input.get<std::uint64_t>();
}

// A frame made of choices rather than of raw bytes, so that most pass the checks of the header.
inline std::string frame(Input& input) {
  static constexpr std::uint8_t kTypes[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                            12, 13, 14, 15, 16, 17, 18, 19, 20, 32, 33};
  FrameHeader header{.type = static_cast<FrameType>(kTypes[input.byte() % sizeof kTypes])};
  header.flags = input.byte();
  header.atomic_op = input.byte() % 24;
  header.data_type = input.byte() % 12;
  const std::uint8_t which = input.byte();
  header.key = which < 200 ? owner().keys[which % 4] : input.get<std::uint64_t>();
  header.remote = number(input);
  header.total = number(input);
  header.data = number(input);
  header.id = number(input);
  const auto payload = input.take(input.byte() % 64 * (input.byte() % 8));
  header.length = static_cast<std::uint32_t>(payload.size());
  if (header.total == 1) header.total = header.length;
  std::string bytes(kHeaderBytes, 0);
  encode(header, reinterpret_cast<std::byte*>(bytes.data()));
  return bytes.append(payload);
}

// What this side posts meanwhile, each with an outcome in the end.
class Posts {
 public:
  explicit Posts(Input& input) : input_(input) {}

  void post(const std::function<std::size_t(Transfer&)>& to) {
    static constexpr OpCode kOps[] = {OpCode::write,        OpCode::read,           OpCode::atomic,
                                      OpCode::fetch_atomic, OpCode::compare_atomic, OpCode::send};
    if (probes_.size() >= kMost) return;
    const OpCode op = kOps[input_.byte() % std::size(kOps)];
    const std::uint64_t length =
        is_atomic(op) ? 8 * (1 + input_.byte() % 16) : input_.get<std::uint16_t>() % kBytes;
    std::byte* const local = owner().local.begin();
    auto probe = std::make_unique<Probe>(op, 7, 0, local, length);
    Transfer& transfer = probe->transfer;
    transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
    transfer.type = DataType::u64;
    if (op == OpCode::fetch_atomic || op == OpCode::compare_atomic) transfer.result = local + 1024;
    if (op == OpCode::compare_atomic) transfer.compare = local + 2048;
    if (op == OpCode::send) transfer.delivery = Delivery::transmit;
    if (to(transfer) == 1) probes_.push_back(std::move(probe));
  }
  void receive(ReceiveQueue& receives) {
    if (probes_.size() >= kMost) return;
    auto probe = std::make_unique<Probe>(OpCode::receive, 0, 0, owner().local.begin(), 0);
    Receive asked;
    asked.operation = &probe->operation;
    asked.local = owner().local.begin();
    asked.length = input_.get<std::uint16_t>() % kBytes;
    asked.rule = {.tag = input_.byte(), .ignore = input_.byte(), .tagged = input_.byte() % 2 != 0};
    receives.post(asked);
    probes_.push_back(std::move(probe));
  }
  // After session and receives have ended.
  void check() const {
    for (const auto& probe : probes_) demand(probe->done(), "every operation has an outcome in the end");
  }

 private:
  static constexpr std::size_t kMost = 32;
  Input& input_;
  std::vector<std::unique_ptr<Probe>> probes_;
};

}  // namespace fab::test
