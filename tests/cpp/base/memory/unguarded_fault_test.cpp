// Faults that no guard expects are those of the program, and end as they would without the library.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstddef>

#include "base/memory/fault_guard.h"
#include "base/memory/mapping.h"
#include "child.h"

using namespace fab;
using test::status_of_child;

namespace {

// Memory whose access is a fault of this kind: without rights, or behind the end of its file.
volatile char* bad_memory(int signal) {
  const int file = signal == SIGBUS ? ::memfd_create("unguarded", 0) : -1;
  void* const at = signal == SIGBUS
                       ? ::mmap(nullptr, page_size(), PROT_READ, MAP_SHARED, file, 0)
                       : ::mmap(nullptr, page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  return static_cast<volatile char*>(at);
}

volatile char* expected_at = nullptr;

void handle_plainly(int) { ::_exit(42); }
void handle_with_place(int, siginfo_t* info, void*) { ::_exit(info->si_addr == expected_at ? 43 : 44); }

bool read_from(volatile char* at) { return *at == 0; }

}  // namespace

TEST_CASE("a program without a handler ends by the fault") {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    for (auto* const before : {SIG_DFL, SIG_IGN}) {
      volatile char* const at = bad_memory(signal);
      const int status = status_of_child([&] {
        ::signal(signal, before);
        arm_fault_guard();
        return read_from(at);
      });
      CHECK(WIFSIGNALED(status));
      CHECK(WTERMSIG(status) == signal);
    }
  }
}

TEST_CASE("a program's own handler gets the fault, with its place") {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    volatile char* const at = bad_memory(signal);
    const int plain = status_of_child([&] {
      ::signal(signal, handle_plainly);
      arm_fault_guard();
      return read_from(at);
    });
    CHECK(WIFEXITED(plain));
    CHECK(WEXITSTATUS(plain) == 42);
    const int placed = status_of_child([&] {
      expected_at = at;
      struct sigaction action{};
      action.sa_sigaction = handle_with_place;
      action.sa_flags = SA_SIGINFO;
      ::sigaction(signal, &action, nullptr);
      arm_fault_guard();
      return read_from(at);
    });
    CHECK(WIFEXITED(placed));
    CHECK(WEXITSTATUS(placed) == 43);
  }
}

TEST_CASE("after a guard has told of a fault, the next one without a guard is the program's again") {
  volatile char* const at = bad_memory(SIGSEGV);
  const int status = status_of_child([&] {
    ::signal(SIGSEGV, handle_plainly);
    arm_fault_guard();
    if (guarded([&] { read_from(at); })) return false;
    return read_from(at);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("a signal that was sent ends the process as it would have, also under a guard") {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    for (const bool by_itself : {false, true}) {
      const int status = status_of_child([&] {
        ::signal(signal, SIG_DFL);
        arm_fault_guard();
        return by_itself ? ::raise(signal) == 0 : guarded([&] {
          if (const pid_t other = ::fork(); other == 0) ::_exit(::kill(::getppid(), signal));
          ::pause();
        });
      });
      CHECK(WIFSIGNALED(status));
      CHECK(WTERMSIG(status) == signal);
    }
  }
}
