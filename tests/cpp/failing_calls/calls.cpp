#include "failing_calls/calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <optional>

#include "failing_memory.h"

namespace fab::test {
namespace {

constexpr CallKind kKinds[] = {
    {"allocation", ENOMEM},
    {"pthread_create", EAGAIN},
    {"pthread_atfork", ENOMEM},
    {"dlopen", 0},
    {"open", EMFILE},
    {"open", ENOMEM},
    {"read", EIO},
    {"pread", EIO},
    {"write", EAGAIN},
    {"fstat", ENOMEM},
    {"fcntl", EMFILE},
    {"ioctl", ENOMEM},
    {"mmap", ENOMEM},
    {"madvise", EAGAIN},
    {"memfd_create", EMFILE},
    {"ftruncate", ENOSPC},
    {"eventfd", EMFILE},
    {"timerfd_create", EMFILE},
    {"epoll_create1", EMFILE},
    {"epoll_ctl", ENOMEM},
    {"epoll_wait", EINTR},
    {"poll", ENOMEM},
    {"getifaddrs", EMFILE},
    {"getrandom", EINTR},
    {"pidfd_open", EMFILE},
    {"epoll_pwait2", EINTR},
    {"process_vm_readv", EPERM},
    {"process_vm_readv", ENOMEM},
    {"process_vm_writev", EPERM},
    {"process_vm_writev", ENOMEM},
    {"socket", EMFILE},
    {"socket", ENOBUFS},
    {"setsockopt", ENOBUFS},
    {"getsockopt", ENOBUFS},
    {"getsockname", ENOBUFS},
    {"getpeername", ENOTCONN},
    {"bind", EADDRINUSE},
    {"listen", EADDRINUSE},
    {"connect", EADDRNOTAVAIL},
    {"connect", ECONNREFUSED},
    {"accept4", EMFILE},
    {"accept4", ECONNABORTED},
    {"send", ENOBUFS},
    {"send", ECONNRESET},
    {"send", EAGAIN},
    {"recv", ECONNRESET},
    {"recv", EINTR},
    {"recv", ENOMEM},
    {"shutdown", ENOTCONN},
};

std::atomic<const CallKind*> armed{nullptr};
std::atomic<std::uint64_t> made{0}, failing{0};
std::optional<FailingMemory> memory;
std::optional<FailingMemory::Scope> memory_scope;

bool fails(const char* name) noexcept {
  const CallKind* const kind = armed.load(std::memory_order_acquire);
  if (!kind || std::strcmp(kind->name, name) != 0) return false;
  if (++made != failing) return false;
  errno = kind->error;
  return true;
}

}  // namespace

std::span<const CallKind> call_kinds() noexcept { return kKinds; }

void arm_calls(const CallKind& kind, std::uint64_t nth) noexcept {
  made = 0;
  failing = nth;
  memory.reset();
  if (std::strcmp(kind.name, "allocation") == 0) {
    memory.emplace(nth, FailingMemory::Of::process);
    memory_scope.emplace(*memory);
  } else {
    armed.store(&kind, std::memory_order_release);
  }
}

void disarm_calls() noexcept {
  armed = nullptr;
  memory_scope.reset();
}

std::uint64_t calls_made() noexcept { return memory ? memory->made() : made.load(); }

}  // namespace fab::test

using fab::test::fails;

// `call`: the name under which it counts.
#define FAB_WRAP(result, name, call, parameters, arguments) \
  result __real_##name parameters;                          \
  result __wrap_##name parameters {                         \
    if (fails(#call)) return static_cast<result>(-1);       \
    return __real_##name arguments;                         \
  }

extern "C" {

FAB_WRAP(ssize_t, read, read, (int fd, void* to, size_t size), (fd, to, size))
FAB_WRAP(ssize_t, pread, pread, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
FAB_WRAP(ssize_t, write, write, (int fd, const void* from, size_t size), (fd, from, size))
FAB_WRAP(int, fstat, fstat, (int fd, struct stat* to), (fd, to))
FAB_WRAP(int, madvise, madvise, (void* at, size_t size, int advice), (at, size, advice))
FAB_WRAP(int, memfd_create, memfd_create, (const char* name, unsigned flags), (name, flags))
FAB_WRAP(int, ftruncate, ftruncate, (int fd, off_t size), (fd, size))
FAB_WRAP(int, eventfd, eventfd, (unsigned value, int flags), (value, flags))
FAB_WRAP(int, timerfd_create, timerfd_create, (int clock, int flags), (clock, flags))
FAB_WRAP(int, epoll_create1, epoll_create1, (int flags), (flags))
FAB_WRAP(int, epoll_wait, epoll_wait, (int fd, epoll_event* to, int count, int ms), (fd, to, count, ms))
FAB_WRAP(int, poll, poll, (pollfd * fds, nfds_t count, int ms), (fds, count, ms))
FAB_WRAP(int, getifaddrs, getifaddrs, (ifaddrs * *list), (list))
FAB_WRAP(ssize_t, getrandom, getrandom, (void* to, size_t size, unsigned flags), (to, size, flags))
FAB_WRAP(ssize_t, process_vm_readv, process_vm_readv,
         (pid_t pid, const iovec* to, unsigned long count, const iovec* from, unsigned long from_count,
          unsigned long flags),
         (pid, to, count, from, from_count, flags))
FAB_WRAP(ssize_t, process_vm_writev, process_vm_writev,
         (pid_t pid, const iovec* from, unsigned long count, const iovec* to, unsigned long to_count,
          unsigned long flags),
         (pid, from, count, to, to_count, flags))
FAB_WRAP(int, socket, socket, (int domain, int type, int protocol), (domain, type, protocol))
FAB_WRAP(int, setsockopt, setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
         (fd, level, name, value, size))
FAB_WRAP(int, getsockopt, getsockopt, (int fd, int level, int name, void* value, socklen_t* size),
         (fd, level, name, value, size))
FAB_WRAP(int, getsockname, getsockname, (int fd, sockaddr* to, socklen_t* size), (fd, to, size))
FAB_WRAP(int, getpeername, getpeername, (int fd, sockaddr* to, socklen_t* size), (fd, to, size))
FAB_WRAP(int, bind, bind, (int fd, const sockaddr* address, socklen_t size), (fd, address, size))
FAB_WRAP(int, listen, listen, (int fd, int backlog), (fd, backlog))
FAB_WRAP(int, connect, connect, (int fd, const sockaddr* address, socklen_t size), (fd, address, size))
FAB_WRAP(int, accept4, accept4, (int fd, sockaddr* from, socklen_t* size, int flags), (fd, from, size, flags))
FAB_WRAP(ssize_t, send, send, (int fd, const void* from, size_t size, int flags), (fd, from, size, flags))
FAB_WRAP(ssize_t, sendmsg, send, (int fd, const msghdr* message, int flags), (fd, message, flags))
FAB_WRAP(ssize_t, recv, recv, (int fd, void* to, size_t size, int flags), (fd, to, size, flags))
FAB_WRAP(ssize_t, recvmsg, recv, (int fd, msghdr* message, int flags), (fd, message, flags))
FAB_WRAP(int, shutdown, shutdown, (int fd, int how), (fd, how))

void* __real_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  return fails("mmap") ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

// What is taken from a poller cannot fail to be taken from it.
int __real_epoll_ctl(int poller, int what, int fd, epoll_event* event);
int __wrap_epoll_ctl(int poller, int what, int fd, epoll_event* event) {
  return what == EPOLL_CTL_ADD && fails("epoll_ctl") ? -1 : __real_epoll_ctl(poller, what, fd, event);
}

void* __real_dlopen(const char* name, int flags);
void* __wrap_dlopen(const char* name, int flags) {
  return fails("dlopen") ? nullptr : __real_dlopen(name, flags);
}

int __real_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)());
int __wrap_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)()) {
  return fails("pthread_atfork") ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? static_cast<mode_t>(va_arg(rest, int)) : 0;
  va_end(rest);
  return fails("open") ? -1 : __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...) {
  va_list rest;
  va_start(rest, what);
  void* const argument = va_arg(rest, void*);  // one register, whatever its type
  va_end(rest);
  return fails("fcntl") ? -1 : __real_fcntl(fd, what, argument);
}

int __real_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...) {
  va_list rest;
  va_start(rest, what);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  return fails("ioctl") ? -1 : __real_ioctl(fd, what, argument);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  const char* const name = number == SYS_pidfd_open     ? "pidfd_open"
                           : number == SYS_epoll_pwait2 ? "epoll_pwait2"
                                                        : nullptr;
  if (name && fails(name)) return -1;
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                        arguments[5]);
}

// std::thread calls it from the standard library, where the linker changes nothing.
__attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                          void* (*work)(void*), void* argument) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return fails("pthread_create") ? EAGAIN : real(thread, attributes, work, argument);
}
}
