// What the synchronisation calls cost on a domain that does not need them, in ns: one and ten triplets, in
// a domain of 1 and of 10,000 regions. Ends with 1 if ten triplets take a microsecond or more (SYNC-29).
// That they make no system call is seen by the tests, fabric/noncoherent/synchronisation_test and
// tests/core/test_sync_calls.py, under strict seccomp. Built against the library, or as the target
// sync_calls:
//   g++ -std=c++20 -O3 -Isrc/cpp -Itests/cpp benchmarks/cpp/sync_calls.cpp libfab.a
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "providers/shm/harness.h"

namespace {

using namespace fab;

// Median over rounds, ns per pair of calls divided by two.
double cost(DomainCore& domain, std::span<const Triplet> segments) {
  constexpr int kRounds = 31, kCalls = 20'000;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      domain.sync_rdma_read(segments);
      domain.sync_rdma_write(segments);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    rounds.push_back(took.count() / (2 * kCalls));
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

}  // namespace

int main() {
  bool good = true;
  for (const std::size_t count : {std::size_t{1}, std::size_t{10'000}}) {
    test::Side side;
    std::vector<test::Side::Memory> memories;
    for (std::size_t i = 0; i < count; ++i) memories.push_back(side.own(64));
    std::vector<Triplet> segments;
    for (std::size_t i = 0; i < 10; ++i) {
      auto& memory = memories[i * 7919 % count];
      segments.push_back(
          {memory.region->id(), reinterpret_cast<std::uint64_t>(memory.data()), std::uint64_t{64}});
    }
    const double one = cost(*side.domain, {segments.data(), 1});
    const double ten = cost(*side.domain, segments);
    std::printf("%zu regions: 1 triplet %.0f ns, 10 triplets %.0f ns\n", count, one, ten);
    good &= ten < 1000;
  }
  return good ? 0 : 1;
}
