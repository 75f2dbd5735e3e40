#include "failing_calls/scenario.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "fabric/domain/domain_core.h"
#include "failing_calls/calls.h"
#include "failing_memory.h"
#include "providers/lnx/provider.h"
#include "providers/providers.h"
#include "providers/tcp/provider.h"

namespace fab::test {
namespace {

constexpr std::size_t kSize = 300'000, kEager = 100, kAnnounced = 200'000;
constexpr std::size_t kCounter = kSize - 8;  // where the counter is in the memory of each node
constexpr double kPatience = 20;             // seconds; twice as long as a peer may be silent

void append(auto& text, std::string_view what, std::string_view more) noexcept {
  const std::size_t used = std::strlen(text.data());
  std::snprintf(text.data() + used, text.size() - used, "%s%.*s: %.*s", used ? "; " : "",
                static_cast<int>(what.size()), what.data(), static_cast<int>(more.size()), more.data());
}

// Two tcp links of one domain that lead to each peer.
std::unique_ptr<Domain> open_rails(const DomainServices& services) {
  const auto provider = tcp::make_tcp_provider();
  const Info info = provider->discover().front();
  DomainServices lent = services;
  lent.linked = true;
  std::vector<lnx::OpenLink> links;
  for (const char* const tag : {"tcp.0", "tcp.1"})
    links.push_back({.domain = provider->open(info, tag, lent), .tag = tag});
  return lnx::make_linked_domain(std::move(links), {.rail_deadline = 2, .peer_deadline = 10});
}

std::shared_ptr<DomainCore> open(const std::string& link) {
  DomainOptions options;
  if (link == "rails") return DomainCore::open(open_rails, std::move(options));
  if (link == "tcp-encrypted") {
    options.auth_key = "secret";
    options.encrypt = true;
  }
  if (link.starts_with("shm-")) options.settings["shm_copy"] = link.substr(4);
  if (link.starts_with("shm-")) return open_domain("shm", std::move(options));
  if (link.starts_with("tcp")) return open_domain("tcp:lo", std::move(options));
  if (link == "shm+tcp") return open_domain("shm+tcp:lo", std::move(options));
  return open_domain(link, std::move(options));
}

// A call and all that it needs, which stays until the contexts are closed.
struct Call {
  Operation operation, received;
  std::vector<std::byte> local, landing;
  std::vector<Transfer> transfers;
  std::uint64_t before = 0;
  bool posted = false, expected = false;
};

struct Node {
  std::vector<std::byte> memory = std::vector<std::byte>(kSize);
  std::shared_ptr<AddressVector> peers = std::make_shared<AddressVector>();
  std::shared_ptr<DomainCore> core;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<EventQueue> events;
  std::shared_ptr<Context> context;
  std::shared_ptr<MemoryRegion> region;
  PeerId other = kNoPeer;
};

class Run {
 public:
  Run(std::string link, Findings& findings) : link_(std::move(link)), findings_(findings) {
    calls_.reserve(64);
  }
  void operator()() {
    if (open(a_) && open(b_) && insert(a_, b_) && insert(b_, a_)) use();
    close(a_);
    close(b_);
    check_ended();
  }

 private:
  // What fails is tried again, as a program would: one call that failed must not spoil those that follow.
  template <class Step>
  bool attempt(const char* what, Step step) {
    for (int tries = 0; tries < 3; ++tries) try {
        const Errc error = step();
        if (error == Errc::ok) return true;
        failed(what, error, describe(error));
      } catch (const Error& error) {
        failed(what, error.code(), error.what());
        if (may_last() && error.code() == also_true()) return false;
      } catch (const std::exception& error) {
        failed(what, shortage_or(error, Errc::io), error.what());
      }
    const FailingMemory::Spared spared;
    findings_.blame(what, "fails again and again");
    return false;
  }
  void failed(const char* what, Errc error, const char* text) {
    const FailingMemory::Spared spared;
    findings_.note(what, name(error));
    constexpr Errc kTrue[] = {Errc::no_memory, Errc::too_many_files, Errc::peer_lost, Errc::unreachable,
                              Errc::io,        Errc::again,          Errc::no_data,   Errc::timeout};
    std::fprintf(stderr, "%s: %s: %s\n", what, name(error), text);
    const bool says = error == also_true() || std::ranges::find(kTrue, error) != std::end(kTrue);
    if (!says || !*text)
      findings_.blame(what, std::string(name(error)) + " does not say what failed: " + text);
  }

  bool open(Node& node) {
    return attempt("open", [&] { return node.core = test::open(link_), Errc::ok; }) &&
           attempt("open a queue",
                   [&] {
                     node.completions =
                         node.core->open_completion_queue(64, CompletionQueue::WhenFull::forget_oldest);
                     node.events = node.core->open_event_queue(16);
                     return Errc::ok;
                   }) &&
           attempt("open a context",
                   [&] {
                     node.context =
                         node.core->open_context(0, {.number = node.core->contexts().next_endpoint_number()},
                                                 node.peers, node.completions, node.events);
                     return Errc::ok;
                   }) &&
           attempt("register", [&] {
             MemoryRegion::Parameters parameters;
             parameters.buffers = {{node.memory.data(), node.memory.size()}};
             parameters.access = access::kAll;
             node.region = node.core->register_memory(std::move(parameters));
             return Errc::ok;
           });
  }
  bool insert(Node& node, Node& other) {
    return attempt("insert", [&] {
      node.other = node.peers->insert(Name{other.context->parts()}.encode());
      return Errc::ok;
    });
  }

  void use() {
    for (int round = 0; round < 2; ++round) {
      move(OpCode::write, kEager, 1);
      move(OpCode::write, kAnnounced, 1);
      move(OpCode::read, kAnnounced, 1);
      add();
      move(OpCode::write, 1000, 8);
      message(kEager);
      message(kAnnounced);
      attempt("flush", [&] {
        auto goals = a_.context->flush_goals(a_.other);
        if (!a_.context->flushed(goals, Deadline::in_seconds(kPatience)))
          findings_.blame("flush", "does not end");
        return Errc::ok;
      });
    }
    std::uint64_t counter = 0;
    std::memcpy(&counter, b_.memory.data() + kCounter, sizeof counter);
    if (counter < added_ || counter > added_ + failed_additions_)
      findings_.blame("add", "was done too often or not");
  }

  Call& make(OpCode op, std::size_t length, std::uint32_t count) {
    auto call = std::make_unique<Call>();
    call->local.assign(length * count, std::byte{++fill_});
    call->transfers.resize(count);
    call->operation.begin({.transfers = count});
    for (std::uint32_t i = 0; i < count; ++i) {
      Transfer& transfer = call->transfers[i];
      transfer.operation = &call->operation;
      transfer.op = op;
      transfer.key = b_.region->remote().key;
      transfer.remote = i * length;
      transfer.local = call->local.data() + i * length;
      transfer.length = length;
      transfer.delivery = Delivery::delivery;
      transfer.atomic = AtomicOp::sum;
      transfer.type = DataType::u64;
    }
    calls_.push_back(std::move(call));
    return *calls_.back();
  }
  void post(Call& call) {
    std::span<const Transfer> rest(call.transfers);
    const auto deadline = Deadline::in_seconds(kPatience);
    for (unsigned fruitless = 0; !rest.empty() && !deadline.passed(); ++fruitless) try {
        if (fruitless) a_.context->make_room(fruitless);
        const std::size_t taken = a_.context->post(a_.other, rest);
        call.posted |= taken > 0;
        rest = rest.subspan(taken);
        if (taken) fruitless = 0;
      } catch (...) {
        if (!call.posted) throw;
        // Part of it is under way, so it has an outcome.
        a_.context->abandon(call.operation, static_cast<std::uint32_t>(rest.size()), Errc::io);
        return;
      }
    if (!rest.empty()) findings_.blame("post", "finds no room");
  }
  Errc outcome(const char* what, Call& call) {
    if (a_.context->wait([&] { return call.operation.done(); }, Deadline::in_seconds(kPatience)))
      return call.operation.completion().error;
    findings_.blame(what, "has no outcome");
    return Errc::ok;
  }

  void move(OpCode op, std::size_t length, std::uint32_t count) {
    const char* const what = op == OpCode::read ? "get" : count > 1 ? "puts" : "put";
    attempt(what, [&] {
      Call& call = make(op, length, count);
      post(call);
      const Errc error = outcome(what, call);
      if (error == Errc::ok && std::memcmp(b_.memory.data(), call.local.data(), call.local.size()) != 0)
        findings_.blame(what, "ended, and the bytes are not there");
      return error;
    });
  }
  void add() {
    attempt("add", [&] {
      Call& call = make(OpCode::fetch_atomic, 8, 1);
      const std::uint64_t one = 1;
      std::memcpy(call.local.data(), &one, sizeof one);
      call.transfers[0].remote = kCounter;
      call.transfers[0].result = reinterpret_cast<std::byte*>(&call.before);
      post(call);
      const Errc error = outcome("add", call);
      if (error == Errc::ok && (call.before < added_ || call.before > added_ + failed_additions_))
        findings_.blame("add", "brings another value");
      ++(error == Errc::ok ? added_ : failed_additions_);
      return error;
    });
  }
  void message(std::size_t length) {
    const char* const what = length == kEager ? "message" : "long message";
    attempt(what, [&] {
      Call& call = make(OpCode::send, length, 1);
      call.landing.resize(length);
      Transfer& send = call.transfers[0];
      send.flags = transfer_flag::kTagged;
      send.key = ++tag_;
      send.remote = 0;
      Receive receive{};
      receive.operation = &call.received;
      receive.local = call.landing.data();
      receive.length = length;
      receive.rule = {.tag = tag_, .tagged = true};
      call.received.begin({});
      try {
        b_.context->inbox().receive(receive);
      } catch (...) {
        call.received.withdraw();
        throw;
      }
      call.expected = true;
      try {
        post(call);
      } catch (...) {
        b_.context->inbox().cancel(call.received);
        throw;
      }
      return message_outcome(what, call);
    });
  }
  Errc message_outcome(const char* what, Call& call) {
    const Errc sent = outcome(what, call);
    if (sent != Errc::ok) b_.context->inbox().cancel(call.received);
    if (!b_.context->wait([&] { return call.received.done(); }, Deadline::in_seconds(kPatience))) {
      findings_.blame(what, "is not received");
      return Errc::ok;
    }
    const Errc received = call.received.completion().error;
    if (received == Errc::ok && std::ranges::mismatch(call.landing, call.local).in1 != call.landing.end())
      findings_.blame(what, "was received, and the bytes are not there");
    return sent != Errc::ok ? sent : received;
  }

  void close(Node& node) {
    if (!node.core) return;
    attempt("close", [&] {
      if (node.context) node.core->contexts().close(*node.context);
      if (node.region) node.region->close(Deadline::in_seconds(kPatience));
      node.core->close(true);
      return Errc::ok;
    });
  }
  void check_ended() {
    for (const auto& call : calls_) {
      if (call->posted && !call->operation.done())
        findings_.blame("close", "leaves an operation without outcome");
      if (call->expected && !call->received.done())
        findings_.blame("close", "leaves a receive without outcome");
    }
  }

  const std::string link_;
  Findings& findings_;
  std::vector<std::unique_ptr<Call>> calls_;
  Node a_, b_;
  std::uint8_t fill_ = 0;
  std::uint64_t added_ = 0, failed_additions_ = 0, tag_ = 0;
};

}  // namespace

void Findings::note(std::string_view what, std::string_view error) noexcept { append(errors, what, error); }
void Findings::blame(std::string_view what, std::string_view why) noexcept { append(wrong, what, why); }

void run_scenario(const std::string& link, Findings& findings) {
  const auto run = [&] {
    const FailingMemory::Spared spared;
    return std::make_unique<Run>(link, findings);
  }();
  (*run)();
}

}  // namespace fab::test
