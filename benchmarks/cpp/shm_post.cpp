// What one post to a neighbour costs, in ns per operation: 8-byte puts and fetch-adds in batches of 1 and 64 on mapped memory, by
// cross-memory attach and through the ring, and large puts against memcpy. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp -Itests/cpp benchmarks/cpp/shm_post.cpp libfab.a
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "providers/shm_harness.h"

namespace {

using namespace fab;
using test::Side;

// Median over rounds of ns per call.
double measure(int calls, const std::function<void()>& call) {
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    rounds.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[0];
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
  Exposed exposed{.name = {}, .name_size = 0, .mapped_key = mapped.region->key(), .own_key = own.region->key(), .own = own.data()};
  const std::string name = side.name();
  exposed.name_size = name.size();
  std::memcpy(exposed.name, name.data(), name.size());
  if (::write(out, &exposed, sizeof exposed) != sizeof exposed) ::_exit(1);
  char end;
  [[maybe_unused]] const auto got = ::read(in, &end, 1);  // until the initiator has closed its end
  ::_exit(0);
}

void small(Side& side, PeerId peer, const char* way, std::uint64_t key, int calls) {
  std::uint64_t value = 1, former = 0;
  for (const std::size_t batch : {std::size_t{1}, std::size_t{64}}) {
    for (const bool atomic : {false, true}) {
      Operation operation;
      std::vector<Transfer> transfers(batch, Side::transfer(OpCode::write, key, 0, &value, 8));
      for (std::size_t i = 0; i < batch; ++i) {
        Transfer& transfer = transfers[i];
        transfer.operation = &operation;
        transfer.remote = 8 * i;
        if (!atomic) continue;
        transfer.op = OpCode::fetch_atomic;
        transfer.atomic = AtomicOp::sum;
        transfer.type = DataType::u64;
        transfer.result = reinterpret_cast<std::byte*>(&former);
      }
      const double ns = measure(calls / static_cast<int>(batch), [&] {
        operation.begin(static_cast<std::uint32_t>(batch), 0, 0, nullptr, nullptr, nullptr);
        side.context->post(peer, transfers);
        if (!operation.done()) side.context->wait([&] { return operation.done(); }, {});
      });
      std::printf("%-7s %-9s batch %2zu: %8.1f ns each\n", way, atomic ? "fetch-add" : "put 8 B", batch,
                  ns / static_cast<double>(batch));
    }
  }
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
    small(side, peer, "attach", exposed.own_key, 1 << 16);
    Side ring("ring");
    small(ring, ring.peers->insert({exposed.name, exposed.name_size}), "ring", exposed.mapped_key, 1 << 12);

    std::uint64_t value = 1;
    iovec local{&value, 8}, remote{exposed.own, 8};
    std::printf("process_vm_writev 8 B: %8.1f ns\n", measure(1 << 16, [&] { ::process_vm_writev(child, &local, 1, &remote, 1, 0); }));

    std::vector<std::byte> from(kLength, std::byte{1}), to(kLength);
    for (const std::size_t size : {std::size_t{4096}, std::size_t{65536}, std::size_t{1} << 20, kLength}) {
      const int calls = static_cast<int>(std::clamp<std::size_t>((64 << 20) / size, 2, 10000));
      const auto put = [&](std::uint64_t key) {
        return measure(calls, [&] { side.put(peer, key, 0, from.data(), size); });
      };
      const double copy = measure(calls, [&] {
        std::memcpy(to.data(), from.data(), size);
        asm volatile("" ::"r"(to.data()) : "memory");
      });
      const double mapped = put(exposed.mapped_key), attach = put(exposed.own_key);
      iovec piece{from.data(), size}, there{exposed.own, size};
      const double bare = measure(calls, [&] { ::process_vm_writev(child, &piece, 1, &there, 1, 0); });
      std::printf("%9zu B: mapped %7.2f GB/s (%.2f of memcpy)   attach %7.2f GB/s (%.2f of the call)\n", size,
                  static_cast<double>(size) / mapped, copy / mapped, static_cast<double>(size) / attach, bare / attach);
    }
  }
  ::close(down[1]);
  int status;
  ::waitpid(child, &status, 0);
  return 0;
}
