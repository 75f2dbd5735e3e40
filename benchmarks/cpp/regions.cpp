// What registering, closing and looking up a region costs with few and with many live regions, in ns, and the
// memory per region; and, where it is installed, the same loop over libfabric's fi_mr_reg/fi_close, whose
// rounds alternate with ours. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp -Itests/cpp benchmarks/cpp/regions.cpp libfab.a -o regions          # alone
//   g++ -std=c++20 -O3 -DWITH_LIBFABRIC ... -lfabric                                                 # beside
//   it
#ifdef WITH_LIBFABRIC
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "providers/shm/harness.h"

namespace {

using namespace fab;

constexpr int kCalls = 2000, kRounds = 31;
char memory[4096];

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size()) / 2, values.end());
  return values[values.size() / 2];
}

double ns_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

std::size_t resident() {
  std::size_t total = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A library that registers memory: live regions stay until the end.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual const char* name() const = 0;
  virtual void grow(std::size_t live) = 0;
  virtual void register_all() = 0;  // kCalls regions
  virtual void close_all() = 0;     // and away with them
};

class Pyfab final : public Contestant {
 public:
  const char* name() const override { return "pyfab"; }
  void grow(std::size_t live) override {
    while (live_.size() < live) live_.push_back(one());
  }
  void register_all() override {
    for (auto& region : fresh_) region = one();
  }
  void close_all() override {
    for (auto& region : fresh_) {
      region->close({});
      region.reset();
    }
  }
  // ns for a remote key to be found in the table.
  double look_up() {
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> keys(kCalls);
    for (auto& key : keys) key = live_[random() % live_.size()]->key();
    std::int64_t sum = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const std::uint64_t key : keys) sum += side_.domain->regions().find(key);
    const double took = ns_since(start) / kCalls;
    if (sum < 0) std::puts("lost");
    return took;
  }

 private:
  std::shared_ptr<MemoryRegion> one() {
    MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory, sizeof memory}};
    parameters.access = access::kAll;
    return side_.domain->register_memory(std::move(parameters));
  }
  test::Side side_;
  std::vector<std::shared_ptr<MemoryRegion>> live_,
      fresh_ = std::vector<std::shared_ptr<MemoryRegion>>(kCalls);
};

#ifdef WITH_LIBFABRIC
class Libfabric final : public Contestant {
 public:
  explicit Libfabric(const char* provider) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_RMA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    usable_ = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info) == 0 &&
              fi_fabric(info->fabric_attr, &fabric, nullptr) == 0 &&
              fi_domain(fabric, info, &domain_, nullptr) == 0;
    provider_ = std::string("libfabric ") + provider;
  }
  bool usable() const { return usable_; }
  const char* name() const override { return provider_.c_str(); }
  void grow(std::size_t live) override {
    for (; live_ < live; ++live_) one(live_ + kCalls);
  }
  void register_all() override {
    for (std::size_t i = 0; i < fresh_.size(); ++i) fresh_[i] = one(i);
  }
  void close_all() override {
    for (fid_mr* region : fresh_) fi_close(&region->fid);
  }

 private:
  fid_mr* one(std::size_t key) {
    fid_mr* region = nullptr;
    if (fi_mr_reg(domain_, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &region,
                  nullptr))
      std::puts("fi_mr_reg failed");
    return region;
  }
  bool usable_ = false;
  std::string provider_;
  fid_domain* domain_ = nullptr;
  std::size_t live_ = 0;
  std::vector<fid_mr*> fresh_ = std::vector<fid_mr*>(kCalls);
};
#endif

}  // namespace

int main() {
  Pyfab own;
  std::vector<Contestant*> contestants{&own};
#ifdef WITH_LIBFABRIC
  Libfabric other("tcp");
  if (other.usable()) contestants.push_back(&other);
#endif
  std::printf("%-18s %10s %12s %12s %12s %14s\n", "", "live", "register ns", "close ns", "look up ns",
              "bytes/region");
  std::size_t before = 1000;
  for (const std::size_t live : {std::size_t{1000}, std::size_t{1'000'000}}) {
    std::vector<double> bytes;
    for (Contestant* contestant : contestants) {
      const std::size_t start = resident();
      contestant->grow(live);
      bytes.push_back(
          live > before ? static_cast<double>(resident() - start) / static_cast<double>(live - before) : 0);
    }
    before = live;
    std::vector<std::vector<double>> in(contestants.size()), out(contestants.size()),
        find(contestants.size());
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < contestants.size(); ++i) {
        auto start = std::chrono::steady_clock::now();
        contestants[i]->register_all();
        in[i].push_back(ns_since(start) / kCalls);
        start = std::chrono::steady_clock::now();
        contestants[i]->close_all();
        out[i].push_back(ns_since(start) / kCalls);
        find[i].push_back(i == 0 ? own.look_up() : 0);
      }
    for (std::size_t i = 0; i < contestants.size(); ++i)
      std::printf("%-18s %10zu %12.0f %12.0f %12.0f %14.0f\n", contestants[i]->name(), live, median(in[i]),
                  median(out[i]), median(find[i]), bytes[i]);
  }
}
