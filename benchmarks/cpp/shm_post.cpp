// What one post to a neighbour costs, in ns per operation: 8-byte puts and fetch-adds in batches of 1 and 64
// on mapped memory, by cross-memory attach and through the ring, large puts against memcpy, and the rate of
// two threads on a context each against one, beside what the machine's two cores do for threads that share
// nothing (twice as much only where they are no halves of one core). Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp -Itests/cpp benchmarks/cpp/shm_post.cpp libfab.a
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "providers/shm/harness.h"

namespace {

using namespace fab;
using test::Side;

// Median over rounds of ns per call, for each of `contestants`, whose rounds alternate.
std::vector<double> measure(int calls, const std::vector<std::function<void()>>& contestants) {
  constexpr int kRounds = 21;
  std::vector<std::vector<double>> rounds(contestants.size());
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t which = 0; which < contestants.size(); ++which) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) contestants[which]();
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      rounds[which].push_back(took.count() / calls);
    }
  std::vector<double> medians;
  for (auto& one : rounds) {
    std::nth_element(one.begin(), one.begin() + kRounds / 2, one.end());
    medians.push_back(one[kRounds / 2]);
  }
  return medians;
}

struct Exposed {
  char name[512];
  std::size_t name_size;
  std::uint64_t mapped_key, own_key;
  void* own;
};
constexpr std::size_t kLength = 64 << 20;

[[noreturn]] void target(int out, int in) {
  Side side;
  auto mapped = side.alloc(kLength);
  auto own = side.own(kLength);
  Exposed exposed{.name = {},
                  .name_size = 0,
                  .mapped_key = mapped.region->key(),
                  .own_key = own.region->key(),
                  .own = own.data()};
  const std::string name = side.name();
  exposed.name_size = name.size();
  std::memcpy(exposed.name, name.data(), name.size());
  if (::write(out, &exposed, sizeof exposed) != sizeof exposed) ::_exit(1);
  char end;
  [[maybe_unused]] const auto got = ::read(in, &end, 1);  // until the initiator has closed its end
  ::_exit(0);
}

// Posts a batch as one operation and waits for it. Two of them share no cache line.
class alignas(128) Batch {
 public:
  Batch(Context& context, PeerId peer, std::vector<Transfer> transfers)
      : context_(context), peer_(peer), transfers_(std::move(transfers)) {
    for (Transfer& transfer : transfers_) transfer.operation = &operation_;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void operator()() {
    operation_.begin({.transfers = static_cast<std::uint32_t>(transfers_.size())});
    context_.post(peer_, transfers_);
    if (!operation_.done()) context_.wait([&] { return operation_.done(); }, {});
  }

 private:
  Context& context_;
  const PeerId peer_;
  std::vector<Transfer> transfers_;
  Operation operation_;
};

// Eight bytes each, from `start` on to every other word, so that no two of them are neighbours.
std::vector<Transfer> words(std::size_t count, std::uint64_t key, bool atomic, std::uint64_t start = 0) {
  static std::uint64_t value = 1, former;
  std::vector<Transfer> transfers(count, Side::transfer(OpCode::write, key, 0, &value, 8));
  for (std::size_t i = 0; i < count; ++i) {
    transfers[i].remote = start + 16 * i;
    if (!atomic) continue;
    transfers[i].op = OpCode::fetch_atomic;
    transfers[i].atomic = AtomicOp::sum;
    transfers[i].type = DataType::u64;
    transfers[i].result = reinterpret_cast<std::byte*>(&former);
  }
  return transfers;
}

void small(Side& side, PeerId peer, const char* way, std::uint64_t key, int calls) {
  for (const std::size_t batch : {std::size_t{1}, std::size_t{64}})
    for (const bool atomic : {false, true}) {
      Batch post(*side.context, peer, words(batch, key, atomic));
      const double ns = measure(calls / static_cast<int>(batch), {std::ref(post)}).front();
      std::printf("%-7s %-9s batch %2zu: %8.1f ns each\n", way, atomic ? "fetch-add" : "put 8 B", batch,
                  ns / static_cast<double>(batch));
    }
}

void threads(Side& side, PeerId peer, std::uint64_t key) {
  constexpr int kCalls = 1 << 18;
  const auto second = side.domain->open_context(
      0, {side.domain->contexts().next_endpoint_number()}, side.peers,
      side.domain->open_completion_queue(64, CompletionQueue::WhenFull::forget_oldest),
      side.domain->open_event_queue());
  Batch one(*side.context, peer, words(1, key, false)), other(*second, peer, words(1, key, false, 4096));
  const auto run = [](Batch& batch) {
    for (int i = 0; i < kCalls; ++i) batch();
  };
  const auto both = [&] {
    std::thread thread([&] { run(other); });
    run(one);
    thread.join();
  };
  struct alignas(128) Alone {
    std::atomic<std::uint64_t> word{0};
  } alone[2];
  const auto count = [](Alone& own) {
    for (int i = 0; i < 2 * kCalls; ++i) own.word.fetch_add(1);
  };
  const auto both_alone = [&] {
    std::thread thread([&] { count(alone[1]); });
    count(alone[0]);
    thread.join();
  };
  const auto ns = measure(1, {[&] { run(one); }, both, [&] { count(alone[0]); }, both_alone});
  std::printf(
      "put 8 B, mapped: one thread %.1f M/s, two on a context each %.1f M/s (%.2f); locked additions of "
      "threads "
      "that share nothing %.2f\n",
      kCalls * 1e3 / ns[0], 2 * kCalls * 1e3 / ns[1], 2 * ns[0] / ns[1], 2 * ns[2] / ns[3]);
}

}  // namespace

int main() {
  int up[2], down[2];
  if (::pipe(up) != 0 || ::pipe(down) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(down[1]);
    target(up[1], down[0]);
  }
  Exposed exposed;
  if (::read(up[0], &exposed, sizeof exposed) != sizeof exposed) return 1;
  {
    Side side;
    const PeerId peer = side.peers->insert({exposed.name, exposed.name_size});
    small(side, peer, "mapped", exposed.mapped_key, 1 << 20);
    threads(side, peer, exposed.mapped_key);
    small(side, peer, "attach", exposed.own_key, 1 << 16);
    Side ring("ring");
    small(ring, ring.peers->insert({exposed.name, exposed.name_size}), "ring", exposed.mapped_key, 1 << 12);

    std::vector<std::byte> from(kLength, std::byte{1}), to(kLength);
    for (const std::size_t size :
         {std::size_t{8}, std::size_t{4096}, std::size_t{65536}, std::size_t{1} << 20, kLength}) {
      Batch mapped(*side.context, peer,
                   {Side::transfer(OpCode::write, exposed.mapped_key, 0, from.data(), size)});
      Batch attach(*side.context, peer,
                   {Side::transfer(OpCode::write, exposed.own_key, 0, from.data(), size)});
      const auto copy = [&] {
        std::memcpy(to.data(), from.data(), size);
        asm volatile("" ::"r"(to.data()) : "memory");
      };
      iovec local{from.data(), size}, remote{exposed.own, size};
      const auto call = [&] { ::process_vm_writev(child, &local, 1, &remote, 1, 0); };
      const int calls = static_cast<int>(std::clamp<std::size_t>((64 << 20) / size, 2, 10000));
      const auto ns = measure(calls, {copy, std::ref(mapped), call, std::ref(attach)});
      std::printf(
          "%8zu B: memcpy %10.0f ns, mapped %10.0f ns (%.2f)   process_vm_writev %10.0f ns, attach %10.0f ns "
          "(%.2f)\n",
          size, ns[0], ns[1], ns[1] / ns[0], ns[2], ns[3], ns[3] / ns[2]);
    }
  }
  ::close(down[1]);
  int status;
  ::waitpid(child, &status, 0);
  return 0;
}
