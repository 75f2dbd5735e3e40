#pragma once

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/fd.h"
#include "providers/shm/harness.h"
#include "providers/shm/layout.h"

// Processes that real faults happen to. Each is forked before its parent has threads, and opens its domain
// itself.
namespace fab::test {

constexpr std::size_t kSize = 1 << 20;

// A process that runs `work(report)`, which sends bytes with `report`, and then sleeps until it is killed.
class Child {
 public:
  using Report = std::function<void(const std::string&)>;
  explicit Child(const std::function<void(const Report&)>& work) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    from_.reset(ends[0]);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) {
      ::close(ends[1]);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto report = [&](const std::string& bytes) {
      if (::write(ends[1], bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) ::_exit(1);
    };
    try {
      work(report);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    for (;;) ::pause();
  }
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  // The next `size` bytes that it reports.
  std::string hear(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t got = 0; got < size;) {
      const auto now = ::read(from_.get(), bytes.data() + got, size - got);
      REQUIRE(now > 0);
      got += static_cast<std::size_t>(now);
    }
    return bytes;
  }
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  OwnFd from_;
};

// From here on these system calls answer `error` to every thread of this process. False where the machine
// allows no filters.
inline bool refuse_calls(std::initializer_list<unsigned> calls, unsigned error) {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

// As a process that has no descriptor left, but for the pipes through which the sanitizers look at memory.
inline bool refuse_descriptors() {
  return refuse_calls({SYS_openat, SYS_pidfd_open, SYS_memfd_create, SYS_socket, SYS_epoll_create1}, EMFILE);
}

// A process with mapped and with own memory, both of kSize bytes, that does nothing for its peers by itself.
class Target : public Child {
 public:
  // `then`: what it does afterwards.
  explicit Target(const std::function<void(const Report&)>& then = [](const Report&) {})
      : Child([&then](const Report& report) {
          static Side side;
          static auto mapped = side.alloc(kSize), own = side.own(kSize);
          WireWriter out;
          out.put(mapped.region->key()).put(own.region->key()).put_bytes(side.name());
          report(WireWriter().put_bytes(out.bytes()).take());
          then(report);
        }) {
    const std::string size = hear(4);
    const std::string bytes = hear(WireReader(size).get<std::uint32_t>());
    WireReader in(bytes);
    mapped_key = in.get<std::uint64_t>();
    own_key = in.get<std::uint64_t>();
    name = in.get_bytes();
  }
  std::uint64_t mapped_key, own_key;
  std::string name;
};

inline std::string part_of(const std::string& name) { return Name::decode(name).parts.at(0).bytes; }

// The segment of a domain, as a peer attaches it.
inline Segment segment_of(const std::string& name) {
  const auto address = *shm::Address::decode(part_of(name));
  return Segment::attach(address.process, address.segment_fd, address.domain_id);
}

}  // namespace fab::test
