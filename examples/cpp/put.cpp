// Puts a text into the memory of another process, which does nothing meanwhile, and gets it back.
//   put [LINKS]      for instance shm, tcp or shm+tcp, the default
#include <fab/fab.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

constexpr std::size_t kBytes = 4096, kOffset = 128;
const std::string kText = "put by another process";

void tell(int pipe, const std::string& text) {
  const auto size = text.size();
  if (::write(pipe, &size, sizeof size) != sizeof size ||
      ::write(pipe, text.data(), size) != static_cast<ssize_t>(size))
    throw std::runtime_error("the other process is gone");
}

std::string told(int pipe) {
  std::size_t size = 0;
  if (::read(pipe, &size, sizeof size) != sizeof size) throw std::runtime_error("the target did not start");
  std::string text(size, '\0');
  if (::read(pipe, text.data(), size) != static_cast<ssize_t>(size))
    throw std::runtime_error("the target ended early");
  return text;
}

// Registers memory, tells where it is, and looks at it when the other side is done.
int target(const std::string& links, int out, int in) {
  fab::Domain domain(links);
  const fab::Endpoint endpoint(domain);
  const fab::Memory memory = fab::allocate(kBytes);
  const fab::Region region = domain.register_memory({.buffers = {memory}});
  tell(out, endpoint.address());
  tell(out, region.remote().bytes());
  char end;
  if (::read(in, &end, 1) != 0) return 1;  // until the initiator has closed its end
  const std::string found(reinterpret_cast<const char*>(memory.data()) + kOffset, kText.size());
  std::printf("target:    \"%s\" %s\n", found.c_str(), found == kText ? "" : "(wrong)");
  return found == kText ? 0 : 1;
}

int initiator(const std::string& links, int in) {
  const fab::Domain domain(links);
  fab::Endpoint endpoint(domain);
  const fab::Peer peer = endpoint.insert(told(in));
  const fab::Remote remote(told(in));
  std::string back(kText.size(), '\0');
  endpoint.put(peer, kText, remote, kOffset).wait();
  endpoint.get(peer, back, remote, kOffset).wait();
  std::printf("initiator: put and got %zu bytes over %s\n", kText.size(), endpoint.way_to(peer).c_str());
  return back == kText ? 0 : 1;
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
    const int failed = initiator(links, up[0]);
    int status = 0;
    ::close(down[1]);
    ::waitpid(child, &status, 0);
    return failed || status ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", child ? "initiator" : "target", error.what());
    return 1;
  }
}
