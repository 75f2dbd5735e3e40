// Tagged messages between two processes, in C++: half a round trip of 8 bytes, the rate of 8-byte messages in
// windows of 64, and the speed of large ones, for pyfab over shm and tcp, and beside it what is installed.
// Rounds of all alternate. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp benchmarks/cpp/messages.cpp libfab.a -o messages
//   g++ -std=c++20 -O3 -DWITH_LIBFABRIC -DWITH_UCX ... -lfabric -lucp -lucs
// Median and the 10 % best of all rounds. Both sides poll, pinned to one core each.
//   messages [rounds [link]]: only those over `link`, shm or tcp
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#ifdef WITH_LIBFABRIC
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#endif
#ifdef WITH_UCX
#include <ucp/api/ucp.h>
#endif

#include "providers/providers.h"

namespace {

constexpr std::size_t kLargest = 64 << 20;
constexpr int kWindow = 64;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

// Sends and receives in order, complete on return.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void open(int control, bool first) = 0;
  // At most kWindow messages from, or into, the same memory.
  virtual void send(std::byte* memory, std::size_t size, int count) = 0;
  virtual void receive(std::byte* memory, std::size_t size, int count) = 0;
};

void put_all(int fd, const void* data, std::size_t size) {
  if (::send(fd, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) die("control");
}
void get_all(int fd, void* data, std::size_t size) {
  if (::recv(fd, data, size, MSG_WAITALL) != static_cast<ssize_t>(size)) die("control");
}
std::string trade(int fd, const std::string& mine) {
  const std::size_t size = mine.size();
  put_all(fd, &size, sizeof size);
  put_all(fd, mine.data(), size);
  std::size_t theirs = 0;
  get_all(fd, &theirs, sizeof theirs);
  std::string name(theirs, 0);
  get_all(fd, name.data(), theirs);
  return name;
}

class Pyfab final : public Transport {
 public:
  explicit Pyfab(std::string spec) : spec_(std::move(spec)) {}
  void open(int control, bool) override {
    fab::DomainOptions options;
    options.manual_progress = true;  // whoever waits drives; nothing runs beside it
    domain_ = fab::open_domain(spec_, options);
    peers_ = std::make_shared<fab::AddressVector>();
    completions_ = domain_->open_completion_queue(1024, fab::CompletionQueue::WhenFull::forget_oldest);
    context_ = domain_->open_context(0, {domain_->contexts().next_endpoint_number()}, peers_, completions_,
                                     domain_->open_event_queue());
    peer_ = peers_->insert(trade(control, fab::Name{context_->parts()}.encode()));
  }
  void send(std::byte* memory, std::size_t size, int count) override {
    fab::Transfer transfers[kWindow] = {};
    operation_.begin({.transfers = static_cast<std::uint32_t>(count)});
    for (int i = 0; i < count; ++i) {
      fab::Transfer& transfer = transfers[i];
      transfer.operation = &operation_;
      transfer.local = memory;
      transfer.key = 7;
      transfer.length = size;
      transfer.op = fab::OpCode::send;
      transfer.delivery = fab::Delivery::transmit;
      transfer.flags = fab::transfer_flag::kTagged;
    }
    for (std::span<const fab::Transfer> rest(transfers, static_cast<std::size_t>(count)); !rest.empty();) {
      rest = rest.subspan(context_->post(peer_, rest));
      if (!rest.empty()) context_->progress();
    }
    wait(operation_);
  }
  void receive(std::byte* memory, std::size_t size, int count) override {
    for (int i = 0; i < count; ++i) {
      receives_[i].begin({});
      fab::Receive receive;
      receive.operation = &receives_[i];
      receive.local = memory;
      receive.length = size;
      receive.rule = {.tag = 7, .tagged = true};
      context_->inbox().receive(receive);
    }
    for (int i = 0; i < count; ++i) wait(receives_[i]);
  }

 private:
  void wait(fab::Operation& operation) {
    if (!operation.done()) context_->wait([&] { return operation.done(); }, {});
    if (operation.completion().error != fab::Errc::ok) die(fab::describe(operation.completion().error));
  }
  const std::string spec_;
  std::shared_ptr<fab::DomainCore> domain_;
  std::shared_ptr<fab::AddressVector> peers_;
  std::shared_ptr<fab::CompletionQueue> completions_;
  std::shared_ptr<fab::Context> context_;
  fab::PeerId peer_ = 0;
  fab::Operation operation_, receives_[kWindow];
};

// Plain sockets that spin: what the network costs with nothing in between.
class RawTcp final : public Transport {
 public:
  void open(int control, bool first) override {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (first) {
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
      ::listen(fd, 1);
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
      put_all(control, &address.sin_port, sizeof address.sin_port);
      fd_ = ::accept(fd, nullptr, nullptr);
    } else {
      get_all(control, &address.sin_port, sizeof address.sin_port);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) die("connect");
      fd_ = fd;
    }
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  void send(std::byte* memory, std::size_t size, int count) override {
    for (; count; --count)
      for (std::size_t done = 0; done < size;) {
        const auto sent = ::send(fd_, memory + done, size - done, MSG_DONTWAIT);
        if (sent > 0) done += static_cast<std::size_t>(sent);
      }
  }
  void receive(std::byte* memory, std::size_t size, int count) override {
    for (; count; --count)
      for (std::size_t done = 0; done < size;) {
        const auto got = ::recv(fd_, memory + done, size - done, MSG_DONTWAIT);
        if (got > 0) done += static_cast<std::size_t>(got);
      }
  }

 private:
  int fd_ = -1;
};

#ifdef WITH_LIBFABRIC
void good(long rc, const char* what) {
  if (rc < 0) {
    std::fprintf(stderr, "%s: %s\n", what, fi_strerror(static_cast<int>(-rc)));
    std::_Exit(1);
  }
}

class Libfabric final : public Transport {
 public:
  explicit Libfabric(const char* provider) : provider_(provider) {}
  void open(int control, bool) override {
    fi_info *hints = fi_allocinfo(), *info = nullptr;
    const bool tcp = provider_.starts_with("tcp");
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider_.c_str());
    good(fi_getinfo(FI_VERSION(1, 17), tcp ? "127.0.0.1" : nullptr, nullptr, tcp ? FI_SOURCE : 0, hints,
                    &info),
         "fi_getinfo");
    fid_fabric* fabric;
    fid_domain* domain;
    fid_av* addresses;
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_CONTEXT;
    cq.size = 1024;
    good(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
    good(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
    good(fi_av_open(domain, &av, &addresses, nullptr), "fi_av_open");
    good(fi_cq_open(domain, &cq, &sent_, nullptr), "fi_cq_open");
    good(fi_cq_open(domain, &cq, &received_, nullptr), "fi_cq_open");
    good(fi_endpoint(domain, info, &endpoint_, nullptr), "fi_endpoint");
    good(fi_ep_bind(endpoint_, &addresses->fid, 0), "bind");
    good(fi_ep_bind(endpoint_, &sent_->fid, FI_TRANSMIT), "bind");
    good(fi_ep_bind(endpoint_, &received_->fid, FI_RECV), "bind");
    good(fi_enable(endpoint_), "fi_enable");
    char name[512];
    std::size_t size = sizeof name;
    good(fi_getname(&endpoint_->fid, name, &size), "fi_getname");
    const std::string theirs = trade(control, std::string(name, size));
    if (fi_av_insert(addresses, theirs.data(), 1, &peer_, 0, nullptr) != 1) die("fi_av_insert");
    local_ = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
    if (local_) die("this provider wants registered memory");
  }
  void send(std::byte* memory, std::size_t size, int count) override {
    for (int i = 0; i < count; ++i) {
      ssize_t rc;
      while ((rc = fi_tsend(endpoint_, memory, size, nullptr, peer_, 7, &contexts_[i])) == -FI_EAGAIN)
        progress();
      good(rc, "fi_tsend");
    }
    for (int left = count; left;) {
      left -= reap(sent_);
      peek();
    }
  }
  void receive(std::byte* memory, std::size_t size, int count) override {
    for (int i = 0; i < count; ++i)
      good(fi_trecv(endpoint_, memory, size, nullptr, FI_ADDR_UNSPEC, 7, 0, &contexts_[i]), "fi_trecv");
    for (int left = count; left;) left -= std::exchange(early_, 0) + reap(received_);
  }

 private:
  static int reap(fid_cq* queue) {
    fi_cq_entry entries[kWindow];
    const ssize_t n = fi_cq_read(queue, entries, kWindow);
    if (n == -FI_EAGAIN) return 0;
    good(n, "fi_cq_read");
    return static_cast<int>(n);
  }
  void peek() { early_ += reap(received_); }
  void progress() {
    fi_cq_read(sent_, nullptr, 0);
    fi_cq_read(received_, nullptr, 0);
  }
  const std::string provider_;
  fid_ep* endpoint_ = nullptr;
  fid_cq *sent_ = nullptr, *received_ = nullptr;
  fi_addr_t peer_ = 0;
  fi_context contexts_[kWindow]{};
  bool local_ = false;
  int early_ = 0;
};
#endif

#ifdef WITH_UCX
void good_ucx(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    std::fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    std::_Exit(1);
  }
}

class Ucx final : public Transport {
 public:
  Ucx(const char* transports, ucs_thread_mode_t threads) : transports_(transports), threads_(threads) {}
  void open(int control, bool) override {
    ::setenv("UCX_TLS", transports_, 1);
    if (std::string_view(transports_) == "tcp") ::setenv("UCX_NET_DEVICES", "lo", 1);
    ucp_config_t* config;
    good_ucx(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;
    ucp_context_h context;
    good_ucx(ucp_init(&params, config, &context), "ucp_init");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = threads_;
    good_ucx(ucp_worker_create(context, &worker, &worker_), "ucp_worker_create");
    ucp_address_t* address;
    std::size_t size;
    good_ucx(ucp_worker_get_address(worker_, &address, &size), "ucp_worker_get_address");
    const std::string theirs = trade(control, std::string(reinterpret_cast<char*>(address), size));
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    to.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
    good_ucx(ucp_ep_create(worker_, &to, &endpoint_), "ucp_ep_create");
  }
  void send(std::byte* memory, std::size_t size, int count) override {
    ucs_status_ptr_t requests[kWindow];
    for (int i = 0; i < count; ++i) requests[i] = ucp_tag_send_nbx(endpoint_, memory, size, 7, &none_);
    for (int i = 0; i < count; ++i) finish(requests[i]);
  }
  void receive(std::byte* memory, std::size_t size, int count) override {
    ucs_status_ptr_t requests[kWindow];
    for (int i = 0; i < count; ++i)
      requests[i] = ucp_tag_recv_nbx(worker_, memory, size, 7, ~std::uint64_t{0}, &none_);
    for (int i = 0; i < count; ++i) finish(requests[i]);
  }

 private:
  void finish(ucs_status_ptr_t request) {
    if (!request) return;
    if (UCS_PTR_IS_ERR(request)) good_ucx(UCS_PTR_STATUS(request), "request");
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }
  const char* const transports_;
  const ucs_thread_mode_t threads_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_request_param_t none_{};
};
#endif

enum class Test { ping_pong, rate, stream, quit };

struct Order {
  Test test;
  std::size_t size;
  int count;  // round trips, windows or messages
};

// One side of a pair: obeys orders from its control socket; the first one answers with seconds.
[[noreturn]] void run(Transport& transport, int control, int peer, bool first) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(first ? 0 : 1, &cpus);
  ::sched_setaffinity(0, sizeof cpus, &cpus);
  transport.open(peer, first);
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kLargest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::madvise(memory, kLargest, MADV_HUGEPAGE);
  std::memset(memory, 1, kLargest);
  for (;;) {
    Order order{};
    get_all(control, &order, sizeof order);
    if (order.test == Test::quit) std::_Exit(0);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < order.count; ++i) {
      const int burst = order.test == Test::rate ? kWindow : 1;
      const std::size_t back = order.test == Test::ping_pong ? order.size : 1;
      if (first) {
        transport.send(memory, order.size, burst);
        transport.receive(memory, back, 1);
      } else {
        transport.receive(memory, order.size, burst);
        transport.send(memory, back, 1);
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double seconds = took.count();
    put_all(control, &seconds, sizeof seconds);
  }
}

struct Contestant {
  const char* link;
  const char* name;
  std::function<std::unique_ptr<Transport>()> make;
  int control[2] = {-1, -1};

  void start() {
    int peers[2], first[2], second[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, peers) || ::socketpair(AF_UNIX, SOCK_STREAM, 0, first) ||
        ::socketpair(AF_UNIX, SOCK_STREAM, 0, second))
      die("socketpair");
    for (const bool is_first : {true, false})
      if (::fork() == 0) {
        const auto transport = make();
        run(*transport, is_first ? first[1] : second[1], peers[is_first ? 0 : 1], is_first);
      }
    control[0] = first[0];
    control[1] = second[0];
  }
  double measure(const Order& order) const {
    for (const int fd : control) put_all(fd, &order, sizeof order);
    double seconds[2];
    for (int i = 0; i < 2; ++i) get_all(control[i], &seconds[i], sizeof seconds[i]);
    return seconds[0];
  }
};

struct Column {
  const char* title;
  Test test;
  std::size_t size;
  int count;
  std::function<double(double)> figure;  // of the seconds of one count
  bool larger_is_better = true;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  std::vector<Contestant> contestants = {
      {"shm", "pyfab", [] { return std::make_unique<Pyfab>("shm"); }},
#ifdef WITH_LIBFABRIC
      {"shm", "libfabric", [] { return std::make_unique<Libfabric>("shm"); }},
#endif
#ifdef WITH_UCX
      {"shm", "ucx", [] { return std::make_unique<Ucx>("posix,cma", UCS_THREAD_MODE_SINGLE); }},
      {"shm", "ucx-locked", [] { return std::make_unique<Ucx>("posix,cma", UCS_THREAD_MODE_MULTI); }},
#endif
      {"tcp", "pyfab", [] { return std::make_unique<Pyfab>("tcp"); }},
      {"tcp", "linked", [] { return std::make_unique<Pyfab>("shm+tcp"); }},
      {"tcp", "sockets", [] { return std::make_unique<RawTcp>(); }},
#ifdef WITH_LIBFABRIC
      {"tcp", "libfabric", [] { return std::make_unique<Libfabric>("tcp;ofi_rxm"); }},
#endif
#ifdef WITH_UCX
      {"tcp", "ucx", [] { return std::make_unique<Ucx>("tcp", UCS_THREAD_MODE_SINGLE); }},
      {"tcp", "ucx-locked", [] { return std::make_unique<Ucx>("tcp", UCS_THREAD_MODE_MULTI); }},
#endif
  };
  const std::vector<Column> columns = {
      {"8 B half trip us", Test::ping_pong, 8, 2000, [](double s) { return s * 1e6 / 2; }, false},
      {"1 KiB us", Test::ping_pong, 1024, 1000, [](double s) { return s * 1e6 / 2; }, false},
      {"8 B M/s", Test::rate, 8, 200, [](double s) { return kWindow / s / 1e6; }},
      {"64 KiB GB/s", Test::rate, 64 << 10, 10, [](double s) { return kWindow * (64 << 10) / s / 1e9; }},
      {"1 MiB GB/s", Test::stream, 1 << 20, 50, [](double s) { return (1 << 20) / s / 1e9; }},
      {"64 MiB GB/s", Test::stream, kLargest, 2, [](double s) { return kLargest / s / 1e9; }},
  };
  if (argc > 2)
    std::erase_if(contestants,
                  [&](const Contestant& each) { return each.link != std::string_view(argv[2]); });
  std::vector<std::vector<std::vector<double>>> figures(contestants.size(),
                                                        std::vector<std::vector<double>>(columns.size()));
  for (Contestant& contestant : contestants) contestant.start();
  for (int round = 0; round < rounds; ++round)
    for (std::size_t c = 0; c < columns.size(); ++c)
      for (std::size_t i = 0; i < contestants.size(); ++i) {
        const Column& column = columns[c];
        const double seconds = contestants[i].measure({column.test, column.size, column.count});
        if (round > 0) figures[i][c].push_back(column.figure(seconds / column.count));
      }
  std::printf("%-5s%-11s", "", "");
  for (const Column& column : columns) std::printf("%20s", column.title);
  std::printf("\n");
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    std::printf("%-5s%-11s", contestants[i].link, contestants[i].name);
    std::size_t c = 0;
    for (auto& values : figures[i]) {
      std::ranges::sort(values);
      const std::size_t best =
          columns[c].larger_is_better ? values.size() - 1 - values.size() / 10 : values.size() / 10;
      std::printf("%12.3f %7.3f", values[values.size() / 2], values[best]);
      ++c;
    }
    std::printf("\n");
  }
  for (const Contestant& contestant : contestants)
    for (const int fd : contestant.control) {
      const Order quit{Test::quit, 0, 0};
      put_all(fd, &quit, sizeof quit);
    }
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
