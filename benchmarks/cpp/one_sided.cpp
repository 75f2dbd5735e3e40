// One-sided operations between two processes, in C++: a contestant beside perftest (benchmarks/verbs.py),
// where Python's own cost would hide what the library adds to a device. Speaks the line protocol of
// benchmarks/protocol.py: one_sided CAPACITY LINK. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp benchmarks/cpp/one_sided.cpp libfab.a -ldl -o one_sided
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "providers/providers.h"

namespace {

constexpr std::uint32_t kWindow = 64;

[[noreturn]] void fail(const std::string& why) {
  std::printf("{\"error\": \"%s\"}\n", why.c_str());
  std::exit(1);
}

void pin(int side) {
  int cores[2] = {0, 1};
  if (const char* text = std::getenv("PYFAB_BENCH_CORES")) std::sscanf(text, "%d,%d", &cores[0], &cores[1]);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[side], &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

void put_all(int fd, const std::string& text) {
  const std::size_t size = text.size();
  if (::send(fd, &size, sizeof size, MSG_NOSIGNAL) != sizeof size ||
      ::send(fd, text.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
    fail("the other side is gone");
}

std::string get_all(int fd) {
  std::size_t size = 0;
  if (::recv(fd, &size, sizeof size, MSG_WAITALL) != sizeof size) std::exit(0);
  std::string text(size, 0);
  if (::recv(fd, text.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) std::exit(0);
  return text;
}

std::byte* memory_of(std::size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  std::memset(memory, 1, size);
  return static_cast<std::byte*>(memory);
}

struct Side {
  Side(const std::string& link, std::size_t capacity, bool manual)
      : memory(memory_of(capacity)), peers(std::make_shared<fab::AddressVector>()) {
    fab::DomainOptions options;
    options.manual_progress = manual;
    domain = fab::open_domain(link, options);
    context = domain->open_context(
        0, {domain->contexts().next_endpoint_number()}, peers,
        domain->open_completion_queue(1024, fab::CompletionQueue::WhenFull::forget_oldest),
        domain->open_event_queue());
    fab::MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory, capacity}};
    parameters.access = fab::access::kAll;
    region = domain->register_memory(std::move(parameters));
  }
  std::byte* const memory;
  const std::shared_ptr<fab::AddressVector> peers;
  std::shared_ptr<fab::DomainCore> domain;
  std::shared_ptr<fab::Context> context;
  std::shared_ptr<fab::MemoryRegion> region;
};

class Initiator {
 public:
  Initiator(const std::string& link, std::size_t capacity, int control)
      : side_(link, capacity, true), peer_(side_.peers->insert(get_all(control))) {
    const auto region = fab::RemoteRegion::decode(get_all(control));
    side_.context->hint(peer_, region);
    key_ = region.key;
  }
  std::byte* memory() { return side_.memory; }
  // So many at once, complete on return.
  void run(fab::OpCode op, std::size_t size, std::uint32_t count) {
    if (transfers_.size() != count || transfers_.front().op != op || transfers_.front().length != size)
      prepare(op, size, count);
    operation_.begin({.transfers = count});
    for (std::span<const fab::Transfer> rest(transfers_); !rest.empty();) {
      rest = rest.subspan(side_.context->post(peer_, rest));
      if (!rest.empty()) side_.context->progress();
    }
    if (!operation_.done()) side_.context->wait([&] { return operation_.done(); }, {});
    if (operation_.completion().error != fab::Errc::ok) fail(fab::describe(operation_.completion().error));
  }

 private:
  void prepare(fab::OpCode op, std::size_t size, std::uint32_t count) {
    transfers_.resize(count);
    for (fab::Transfer& transfer : transfers_) {
      transfer = {};
      transfer.operation = &operation_;
      transfer.local = op == fab::OpCode::fetch_atomic ? reinterpret_cast<std::byte*>(&one_) : side_.memory;
      transfer.key = key_;
      transfer.length = size;
      transfer.op = op;
      transfer.delivery = fab::Delivery::delivery;
      if (op != fab::OpCode::fetch_atomic) continue;
      transfer.result = reinterpret_cast<std::byte*>(&former_);
      transfer.atomic = fab::AtomicOp::sum;
      transfer.type = fab::DataType::u64;
    }
  }

  Side side_;
  fab::PeerId peer_;
  std::uint64_t key_ = 0, one_ = 1, former_ = 0;
  fab::Operation operation_;
  std::vector<fab::Transfer> transfers_;
};

int serve(Initiator& initiator) {
  using Clock = std::chrono::steady_clock;
  std::printf("{\"ready\": true}\n");
  char line[256], what[32];
  std::uint64_t stamp = 0x1000;
  std::size_t size = 0;
  for (long batch = 0, samples = 0; std::fgets(line, sizeof line, stdin);) {
    if (std::sscanf(line, "%31s %zu %ld %ld", what, &size, &batch, &samples) != 4) fail("bad request");
    const std::string name(what);
    const auto op = name.starts_with("put")   ? fab::OpCode::write
                    : name.starts_with("get") ? fab::OpCode::read
                                              : fab::OpCode::fetch_atomic;
    const std::uint32_t count = name.find("rate") == std::string::npos ? 1 : kWindow;
    ++stamp;
    std::memcpy(initiator.memory(), &stamp, sizeof stamp);
    std::vector<double> ns;
    for (long i = 0; i < samples; ++i) {
      const auto start = Clock::now();
      for (long j = 0; j < batch; ++j) initiator.run(op, size, count);
      const std::chrono::duration<double, std::nano> took = Clock::now() - start;
      ns.push_back(took.count() / static_cast<double>(batch * count));
    }
    if (op == fab::OpCode::write) {
      std::memset(initiator.memory(), 0, sizeof stamp);
      initiator.run(fab::OpCode::read, size, 1);
      if (std::memcmp(initiator.memory(), &stamp, sizeof stamp) != 0) fail("the bytes did not arrive");
    }
    std::printf("{\"what\": \"%s\", \"size\": %zu, \"operations\": %u, \"ns\": [", what, size, count);
    for (std::size_t i = 0; i < ns.size(); ++i) std::printf("%s%.1f", i ? ", " : "", ns[i]);
    std::printf("]}\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 3) fail("usage: one_sided CAPACITY LINK");
  const std::size_t capacity = std::strtoull(argv[1], nullptr, 0);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail("socketpair");
  const pid_t target = ::fork();
  pin(target == 0 ? 1 : 0);
  ::close(ends[target == 0 ? 0 : 1]);
  if (target == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Side side(argv[2], capacity, false);
    put_all(ends[1], fab::Name{side.context->parts()}.encode());
    put_all(ends[1], side.region->remote().encode());
    char end;
    while (::recv(ends[1], &end, 1, 0) > 0) continue;
    return 0;
  }
  int status = 0;
  {
    Initiator initiator(argv[2], capacity, ends[0]);
    status = serve(initiator);
  }
  ::close(ends[0]);
  ::wait(nullptr);
  return status;
} catch (const std::exception& error) {
  fail(error.what());
}
