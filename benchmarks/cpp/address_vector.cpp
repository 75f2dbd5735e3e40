// What a million peers cost in an address vector: inserting, looking up, removing and inserting again, in ns
// each, and memory, in bytes each; and, where it is installed, the same for libfabric's fi_av_*, whose rounds
// alternate with ours. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp benchmarks/cpp/address_vector.cpp libfab.a -lpthread -o address_vector
//   g++ -std=c++20 -O3 -DWITH_LIBFABRIC ... -lfabric                                       # beside it
#ifdef WITH_LIBFABRIC
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#endif

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "base/bytes/wire.h"
#include "fabric/address_vector/address_vector.h"

namespace {

using namespace fab;

constexpr std::size_t kPerNode = 64, kProbes = 20'000;
constexpr int kRounds = 5;

double ns_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

std::size_t resident() {
  std::size_t total = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

sockaddr_in socket_address(std::size_t i) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(5000 + i % kPerNode));
  address.sin_addr.s_addr = htonl(static_cast<std::uint32_t>(0x0a000001 + i / kPerNode));
  return address;
}

// The name of an endpoint of the linked provider, as shm and tcp make it: 64 processes on each node.
std::string linked_name(std::size_t i) {
  std::mt19937_64 process(i), node(i / kPerNode + (std::size_t{1} << 40));
  WireWriter shm, tcp;
  for (int word = 0; word < 2; ++word) shm.put(node());
  shm.put(std::uint32_t(1000 + i % kPerNode)).put(std::uint64_t(process() % 100'000'000));
  shm.put(std::uint32_t(7)).put(process()).put(process()).put(std::uint16_t(0));
  tcp.put(std::uint8_t(1)).put(process()).put(process());
  for (int word = 0; word < 2; ++word) tcp.put(node());
  const sockaddr_in address = socket_address(i);
  tcp.put(std::uint8_t(1)).put(std::uint8_t(4)).put(std::uint16_t(32768 + process() % 28000));
  tcp.raw({reinterpret_cast<const char*>(&address.sin_addr), 4});
  return Name{{{"shm.0", 0, shm.take()}, {"tcp.0", 0, tcp.take()}}}.encode();
}

class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual const char* name() const = 0;
  virtual void open() = 0;
  virtual void insert(std::size_t from, std::size_t to) = 0;
  virtual std::size_t lookup(std::size_t i) = 0;
  virtual void remove(std::size_t i) = 0;  // the handle of address i
};

class Pyfab final : public Contestant {
 public:
  enum class Kind { linked, sockets, symmetric };
  Pyfab(Kind kind, std::size_t count) : kind_(kind) {
    for (std::size_t i = 0; i < count; ++i) {
      const sockaddr_in address = socket_address(i);
      names_ += kind == Kind::linked ? linked_name(i)
                                     : std::string(reinterpret_cast<const char*>(&address), sizeof address);
    }
    size_ = names_.size() / count;
  }
  const char* name() const override {
    return kind_ == Kind::linked    ? "pyfab shm+tcp"
           : kind_ == Kind::sockets ? "pyfab sockets"
                                    : "pyfab symmetric";
  }
  void open() override {
    vector_.reset();
    AddressVectorOptions options;
    if (kind_ != Kind::linked) options.format = AddressFormat::sockaddr_in;
    options.symmetric = kind_ == Kind::symmetric;
    vector_ = std::make_unique<AddressVector>(options);
  }
  void insert(std::size_t from, std::size_t to) override {
    for (std::size_t i = from; i < to; ++i)
      vector_->insert(std::string_view(names_).substr(i * size_, size_));
  }
  std::size_t lookup(std::size_t i) override {
    char address[256];
    return vector_->lookup(i, address) + static_cast<unsigned char>(address[size_ - 1]);
  }
  void remove(std::size_t i) override { vector_->remove(i); }

 private:
  const Kind kind_;
  std::string names_;
  std::size_t size_ = 0;
  std::unique_ptr<AddressVector> vector_;
};

#ifdef WITH_LIBFABRIC
class Libfabric final : public Contestant {
 public:
  explicit Libfabric(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) names_.push_back(socket_address(i));
    handles_.resize(count);
    fi_info* hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->fabric_attr->prov_name = strdup("tcp");
    if (fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints, &info_) != 0) info_ = nullptr;
    fi_freeinfo(hints);
    if (!info_) return;
    fi_fabric(info_->fabric_attr, &fabric_, nullptr);
    fi_domain(fabric_, info_, &domain_, nullptr);
  }
  bool there() const { return domain_ != nullptr; }
  const char* name() const override { return "libfabric tcp"; }
  void open() override {
    if (vector_) fi_close(&vector_->fid);
    fi_av_attr attr{};
    attr.type = FI_AV_TABLE;
    fi_av_open(domain_, &attr, &vector_, nullptr);
  }
  void insert(std::size_t from, std::size_t to) override {
    fi_av_insert(vector_, &names_[from], to - from, &handles_[from], 0, nullptr);
  }
  std::size_t lookup(std::size_t i) override {
    char address[256];
    std::size_t size = sizeof address;
    fi_av_lookup(vector_, handles_[i], address, &size);
    return size + static_cast<unsigned char>(address[3]);
  }
  void remove(std::size_t i) override { fi_av_remove(vector_, &handles_[i], 1, 0); }

 private:
  std::vector<sockaddr_in> names_;
  std::vector<fi_addr_t> handles_;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* vector_ = nullptr;
};
#endif

struct Figures {
  std::vector<double> bytes, insert, in_order, at_random, replace;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size()) / 2, values.end());
  return values[values.size() / 2];
}

void round(Contestant& contestant, std::size_t count, Figures& figures) {
  contestant.open();
  const std::size_t before = resident();
  auto start = std::chrono::steady_clock::now();
  contestant.insert(0, count);
  figures.insert.push_back(ns_since(start) / static_cast<double>(count));
  figures.bytes.push_back((static_cast<double>(resident()) - static_cast<double>(before)) /
                          static_cast<double>(count));
  std::size_t sum = 0;
  start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) sum += contestant.lookup(i);
  figures.in_order.push_back(ns_since(start) / static_cast<double>(count));
  std::mt19937_64 random(1);
  std::vector<std::size_t> probes(kProbes);
  for (auto& probe : probes) probe = random() % count;
  start = std::chrono::steady_clock::now();
  for (const std::size_t probe : probes) sum += contestant.lookup(probe);
  figures.at_random.push_back(ns_since(start) / kProbes);
  // Few only: some take long.
  constexpr std::size_t kReplaced = 500;
  start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kReplaced; ++i) {
    contestant.remove(probes[i]);
    contestant.insert(probes[i], probes[i] + 1);
  }
  figures.replace.push_back(ns_since(start) / kReplaced);
  if (sum == 42) std::puts("");
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::stoul(argv[1]) : 1'000'000;
  std::vector<std::unique_ptr<Contestant>> contestants;
  contestants.push_back(std::make_unique<Pyfab>(Pyfab::Kind::linked, count));
  contestants.push_back(std::make_unique<Pyfab>(Pyfab::Kind::sockets, count));
  contestants.push_back(std::make_unique<Pyfab>(Pyfab::Kind::symmetric, count));
#ifdef WITH_LIBFABRIC
  if (auto libfabric = std::make_unique<Libfabric>(count); libfabric->there())
    contestants.push_back(std::move(libfabric));
#endif
  std::vector<Figures> figures(contestants.size());
  for (int i = 0; i < kRounds; ++i)
    for (std::size_t c = 0; c < contestants.size(); ++c) round(*contestants[c], count, figures[c]);
  std::printf("%zu addresses, medians of %d rounds; ns each\n%-16s %8s %8s %10s %10s %16s\n", count, kRounds,
              "", "bytes", "insert", "look up", "at random", "remove + insert");
  for (std::size_t c = 0; c < contestants.size(); ++c) {
    const Figures& f = figures[c];
    std::printf("%-16s %8.1f %8.0f %10.1f %10.1f %16.0f\n", contestants[c]->name(),
                *std::ranges::max_element(f.bytes), median(f.insert), median(f.in_order), median(f.at_random),
                median(f.replace));
  }
}
