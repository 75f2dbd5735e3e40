// Systems that lack what the library asks them for: no /proc, as in some containers; an older kernel; no
// descriptor that is free.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>

#include "base/memory/mapping.h"
#include "base/memory/memory_map.h"
#include "base/process/identity.h"
#include "base/process/process.h"
#include "child.h"

using namespace fab;
using test::status_of_child;

namespace {

int error_of_proc = 0;   // what opening files below /proc fails with
int error_of_ioctl = 0;  // what ioctl() fails with

bool is_proc(const char* path) { return std::strncmp(path, "/proc/", 6) == 0; }

int fails_with(int error) {
  errno = error;
  return -1;
}

template <class Call>
int code_thrown_by(const Call& call) {
  try {
    call();
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return 0;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_ioctl(int fd, unsigned long request, ...);
ssize_t __real_readlink(const char* path, char* to, std::size_t size);

int __wrap_open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(more, int) : 0;
  va_end(more);
  return error_of_proc && is_proc(path) ? fails_with(error_of_proc) : __real_open(path, flags, mode);
}
int __wrap_ioctl(int fd, unsigned long request, ...) {
  std::va_list more;
  va_start(more, request);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return error_of_ioctl ? fails_with(error_of_ioctl) : __real_ioctl(fd, request, argument);
}
ssize_t __wrap_readlink(const char* path, char* to, std::size_t size) {
  return error_of_proc && is_proc(path) ? fails_with(error_of_proc) : __real_readlink(path, to, size);
}
}

TEST_CASE("without /proc the machine's name and the kernel's number of the network say where a process is") {
  CHECK(status_of_child([] {
          error_of_proc = ENOENT;
          utsname system{};
          ::uname(&system);
          const std::string machine = std::string("machine ") + system.nodename;
          return holds(host_identity(), machine) && holds(network_identity(), machine) &&
                 holds(network_identity(), "cookie ") && network_identity() == network_identity();
        }) == 0);
  CHECK_FALSE(holds(host_identity(), "machine "));
  CHECK(holds(network_identity(), "net:["));
}

TEST_CASE("without /proc nothing is known of processes, and that is no death and no refusal") {
  const ProcessId parent{::getppid(), process_start_time(::getppid())};
  CHECK(status_of_child([&] {
          error_of_proc = ENOENT;
          return !user_of_process(parent.pid) && may_open_ours(parent.pid) && !process_ended(parent);
        }) == 0);
}

TEST_CASE("a lack of descriptors is told as that, and what comes later is found out anew") {
  CHECK(status_of_child([] {
          error_of_proc = EMFILE;
          const bool all_told = code_thrown_by(host_identity) == EMFILE &&
                                code_thrown_by(network_identity) == EMFILE &&
                                code_thrown_by([] { user_of_process(::getppid()); }) == EMFILE &&
                                code_thrown_by([] { may_open_ours(::getppid()); }) == EMFILE &&
                                code_thrown_by([] { process_start_time(::getppid()); }) == EMFILE &&
                                code_thrown_by(this_process) == EMFILE;
          error_of_proc = 0;
          return all_told && !holds(host_identity(), "machine ") && this_process().start_time != 0 &&
                 user_of_process(::getppid()) == ::getuid();
        }) == 0);
}

TEST_CASE("a kernel without PROCMAP_QUERY is asked by text, with the same answers") {
  const std::size_t page = page_size();
  auto* const memory = static_cast<char*>(
      ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(::mprotect(memory + page, page, PROT_READ) == 0);  // two areas more
  REQUIRE(::munmap(memory + 3 * page, page) == 0);
  const int file = ::memfd_create("another's", 0);
  REQUIRE(::ftruncate(file, static_cast<off_t>(page)) == 0);
  void* const shown = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, file, 0);
  REQUIRE(shown != MAP_FAILED);
  const auto range = [](const void* start, std::size_t length) {
    return AddressRange{.start = reinterpret_cast<std::uint64_t>(start), .length = length};
  };
  for (const int error : {0, ENOTTY}) {
    CAPTURE(error);
    error_of_ioctl = error;
    CHECK(pages_stay_until_unmapped(range(memory, 3 * page)));
    CHECK(pages_stay_until_unmapped(range(memory + 8, 1)));
    CHECK_FALSE(pages_stay_until_unmapped(range(memory + 2 * page, page + 1)));
    CHECK_FALSE(pages_stay_until_unmapped(range(memory + 3 * page, 1)));
    CHECK_FALSE(pages_stay_until_unmapped(range(shown, page)));
    CHECK_FALSE(pages_stay_until_unmapped(range(nullptr, 1)));
  }
  error_of_ioctl = 0;
  ::munmap(shown, page);
  ::munmap(memory, 3 * page);
  ::close(file);
}
