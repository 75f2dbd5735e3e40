// Puts a text into the memory of another process, which does nothing meanwhile, and gets it back.
//   put [LINKS]      for instance shm, tcp or shm+tcp, the default
#include <fabric/address_vector/address_vector.h>
#include <fabric/completion/operation.h>
#include <fabric/domain/domain_core.h>
#include <fabric/domain/memory_region.h>
#include <fabric/memory/shared_memory.h>
#include <providers/providers.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kBytes = 4096;
constexpr char kText[] = "put by another process";
constexpr std::size_t kOffset = 128;

// A domain with one endpoint of one context.
struct Port {
  explicit Port(const std::string& links) : domain(fab::open_domain(links, {})) {
    context =
        domain->open_context(0, {.number = domain->contexts().next_endpoint_number()}, peers,
                             domain->open_completion_queue(64, fab::CompletionQueue::WhenFull::forget_oldest),
                             domain->open_event_queue());
  }
  ~Port() { domain->close(true); }

  // One put or get that waits for its outcome.
  void transfer(fab::OpCode what, fab::PeerId peer, const fab::RemoteRegion& region, std::size_t offset,
                void* local, std::size_t length) {
    fab::Operation operation;
    operation.begin(1, 0, 0, nullptr, nullptr, nullptr);
    fab::Transfer transfer{};
    transfer.operation = &operation;
    transfer.op = what;
    transfer.local = static_cast<std::byte*>(local);
    transfer.length = length;
    transfer.key = region.key;
    transfer.remote = region.base + offset;
    transfer.delivery = fab::Delivery::delivery;  // done means visible at the target
    while (context->post(peer, {&transfer, 1}) == 0) context->progress();
    context->wait([&] { return operation.done(); }, {});
    if (const fab::Errc error = operation.completion().error; error != fab::Errc::ok)
      throw fab::Error(error, "the transfer failed");
  }

  std::shared_ptr<fab::DomainCore> domain;
  std::shared_ptr<fab::AddressVector> peers = std::make_shared<fab::AddressVector>();
  std::shared_ptr<fab::Context> context;
};

void send(int pipe, const std::string& text) {
  const auto size = text.size();
  if (::write(pipe, &size, sizeof size) != sizeof size ||
      ::write(pipe, text.data(), size) != static_cast<ssize_t>(size))
    throw std::runtime_error("the other process is gone");
}

std::string receive(int pipe) {
  std::size_t size = 0;
  if (::read(pipe, &size, sizeof size) != sizeof size) throw std::runtime_error("the target did not start");
  std::string text(size, '\0');
  if (::read(pipe, text.data(), size) != static_cast<ssize_t>(size))
    throw std::runtime_error("the target ended early");
  return text;
}

// Registers memory, tells where it is, and looks at it when the other side is done.
int target(const std::string& links, int out, int in) {
  Port port(links);
  auto memory = fab::allocate_shared(kBytes);
  std::byte* const bytes = memory->mapping.data();
  auto region = port.domain->register_memory({.buffers = {{bytes, kBytes}},
                                              .access = fab::access::kRemote,
                                              .file = memory->file.get(),
                                              .keep_alive = memory});
  send(out, fab::Name{port.context->parts()}.encode());
  send(out, region->remote().encode());
  char end;
  if (::read(in, &end, 1) != 0) return 1;  // until the initiator has closed its end
  const bool right = std::memcmp(bytes + kOffset, kText, sizeof kText) == 0;
  std::printf("target:    \"%s\" %s\n", reinterpret_cast<const char*>(bytes + kOffset),
              right ? "" : "(wrong)");
  region->close({});
  return right ? 0 : 1;
}

int initiator(const std::string& links, int in) {
  Port port(links);
  const fab::PeerId peer = port.peers->insert(receive(in));
  const auto region = fab::RemoteRegion::decode(receive(in));
  std::string text(kText, sizeof kText), back(sizeof kText, '\0');
  port.transfer(fab::OpCode::write, peer, region, kOffset, text.data(), text.size());
  port.transfer(fab::OpCode::read, peer, region, kOffset, back.data(), back.size());
  const auto report = port.context->report(peer);
  std::printf("initiator: put and got %zu bytes over %s (%s)\n", text.size(), report.link.c_str(),
              report.how.c_str());
  return back == text ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string links = count > 1 ? arguments[1] : "shm+tcp";
  int up[2], down[2];
  if (::pipe(up) != 0 || ::pipe(down) != 0) return 1;
  const pid_t child = ::fork();
  if (child < 0) return 1;
  try {
    if (child == 0) {
      ::close(up[0]);
      ::close(down[1]);
      return target(links, up[1], down[0]);
    }
    ::close(up[1]);
    int failed = initiator(links, up[0]), status = 0;
    ::close(down[1]);
    ::waitpid(child, &status, 0);
    return failed || status ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", child ? "initiator" : "target", error.what());
    return 1;
  }
}
