#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/types/types.h"

namespace fab {

// How much may move while a context's lock is held: the rule of all links, which stands here and nowhere else
// (src/cpp/DECISIONS.md, "Slices"). One turn under the lock moves one slice; then a thread that waits for the
// lock gets it, and the next turn goes on. So neither a long copy nor a busy peer keeps the context from
// answering others, from taking new work or from letting go of a region.
//
// The Driver begins a slice with each turn and lends it to the links (EndpointServices::slice). A loop that
// moves bytes spends it, and stops once it is spent(), with the rest still to do. What cannot be cut, such as
// the frames that one read brought, may go past the end. Used under the context's lock.
//
// The loops that spend it look alike in the links, and are not one. They differ in who tells of what is left:
// the kernel does of a socket, since its descriptor stays ready, and a queue of completions keeps what was
// not polled; of a ring nobody tells, so shm remembers that there is more, and asks for another turn. They
// differ in what bounds a step (the pieces of one system call, a slot of a queue pair, the room in a ring),
// and in how memory that is not there shows (as the error of a whole call, or with the first byte of one
// copy).
class Slice {
 public:
  static constexpr std::uint64_t kBytes = 1024 * 1024;
  static constexpr std::size_t kTransfers = 64;  // this many small transfers take about as long
  // This many of a caller's batch, which a link takes in one go, for instance by one system call.
  static constexpr std::size_t kOfBatch = 256;

  // The transfers at the front of a batch that make a slice, and what that spends.
  struct Front {
    std::span<const Transfer> transfers;
    std::uint64_t cost = 0;
  };
  // The first transfer of `batch` is always among them, however long it is.
  static Front front(std::span<const Transfer> batch) noexcept {
    std::uint64_t cost = 0;
    std::size_t count = 0;
    for (; count < batch.size(); ++count) {
      const std::uint64_t more = std::max(batch[count].length, kBytes / kOfBatch);
      if (count && (cost > kBytes || more > kBytes - cost)) break;
      cost += more;
    }
    return {batch.first(count), cost};
  }

  void begin() noexcept {
    left_ = kBytes;
    tail_ = kTail;
  }
  void spend(std::uint64_t bytes, std::uint64_t transfers = 1) noexcept {
    left_ -= std::min(left_, cost_of(bytes, transfers));
  }
  // Spends what the first `taken` transfers of a slice cost.
  void spend(const Front& front, std::size_t taken) noexcept {
    if (taken == front.transfers.size())
      left_ -= std::min(left_, front.cost);
    else
      for (const Transfer& transfer : front.transfers.first(taken)) spend(transfer.length);
  }
  bool spent() const noexcept { return left_ == 0; }
  std::uint64_t left() const noexcept { return left_; }  // bytes
  // For a step over a stream of bytes. It may go past the end by so little that a transfer of a slice's
  // length is not cut, with a turn and a wakening for the few bytes that its frame is longer.
  std::uint64_t left_of_stream() const noexcept { return spent() ? 0 : left_ + kTail; }
  // Short answers go with the turn whose requests have spent the slice, as far as the turn has bytes for
  // that. False: they have to wait.
  bool spend_tail(std::uint64_t bytes) noexcept {
    const std::uint64_t cost = std::max(bytes, kTail / kTransfers);
    if (cost > tail_) return false;
    tail_ -= cost;
    return true;
  }
  std::uint64_t used() const noexcept { return kBytes - left_; }

 private:
  static constexpr std::uint64_t kTail = kBytes / 16;
  static constexpr std::uint64_t cost_of(std::uint64_t bytes, std::uint64_t transfers) noexcept {
    return std::max(bytes, transfers * (kBytes / kTransfers));
  }

  std::uint64_t left_ = kBytes, tail_ = kTail;
};

}  // namespace fab
