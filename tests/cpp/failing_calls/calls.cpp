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

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

#include "failing_calls/device_calls.h"
#include "failing_memory.h"

namespace fab::test {
namespace {

constexpr CallKind kKinds[] = {
    {"allocation", ENOMEM},  // the first one: operator new counts it
    {"pthread_create", EAGAIN},
    {"pthread_atfork", ENOMEM},
    // What a process lacks in the beginning it lacks to its end.
    {"dlopen", 0, Errc::not_supported_here, true},
    {"open", EMFILE},
    {"open", ENOMEM},
    {"read", ENOMEM},
    {"pread", ENOMEM},
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
    {"process_vm_readv", EPERM, Errc::not_supported},
    {"process_vm_readv", ENOMEM},
    {"process_vm_writev", EPERM},
    {"process_vm_writev", ENOMEM},
    {"socket", EMFILE},
    {"socket", ENOBUFS},
    {"setsockopt", ENOBUFS},
    {"getsockopt", ENOBUFS},
    {"getsockname", ENOBUFS},
    {"getpeername", ENOTCONN},
    {"bind", EADDRINUSE, Errc::address_in_use},
    {"listen", EADDRINUSE, Errc::address_in_use},
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
    {"ibv_query_device", ENOMEM},
    {"ibv_query_port", ENOMEM},
    {"ibv_alloc_pd", ENOMEM},
    {"ibv_reg_mr", ENOMEM},
    {"ibv_reg_mr_iova2", ENOMEM},
    {"ibv_create_comp_channel", EMFILE},
    {"ibv_create_cq", ENOMEM},
    {"ibv_resize_cq", ENOMEM},
    {"ibv_create_srq", ENOMEM},
    {"ibv_modify_qp", ENOMEM},
    {"ibv_req_notify_cq", ENOMEM},
    {"ibv_post_send", ENOMEM},
    {"ibv_post_recv", ENOMEM},
    {"ibv_post_srq_recv", ENOMEM},
    {"rdma_get_devices", EMFILE},
    {"rdma_create_event_channel", EMFILE},
    {"rdma_create_id", ENOMEM},
    {"rdma_bind_addr", ENOMEM},
    {"rdma_listen", ENOMEM},
    {"rdma_resolve_addr", ENOMEM},
    {"rdma_resolve_route", ENOMEM},
    {"rdma_create_qp", ENOMEM},
    {"rdma_connect", ENOMEM},
    {"rdma_accept", ENOMEM},
    {"rdma_set_option", ENOMEM},
    {"rdma_get_cm_event", ENOMEM},
};

std::atomic<bool> armed{false};
const CallKind* failing = nullptr;
std::uint64_t failing_nth = 0;
std::array<std::atomic<std::uint64_t>, std::size(kKinds)> made{};
std::optional<FailingMemory> memory;
std::optional<FailingMemory::Scope> memory_scope;
thread_local int in_device = 0;

}  // namespace

DeviceCode::DeviceCode() noexcept { ++in_device; }
DeviceCode::~DeviceCode() { --in_device; }

bool call_fails(const char* name) noexcept {
  if (!armed.load(std::memory_order_acquire)) return false;
  bool fails = false;
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    if (std::strcmp(kKinds[i].name, name) == 0) fails |= ++made[i] == failing_nth && &kKinds[i] == failing;
  if (fails) errno = failing->error;
  return fails;
}

std::span<const CallKind> call_kinds() noexcept { return kKinds; }

void arm_calls(const CallKind* kind, std::uint64_t nth) noexcept {
  for (auto& count : made) count = 0;
  failing = kind;
  failing_nth = nth;
  memory.emplace(kind == &kKinds[0] ? nth : 0, FailingMemory::Of::process);
  armed.store(true, std::memory_order_release);
  memory_scope.emplace(*memory);
}

void disarm_calls() noexcept {
  memory_scope.reset();
  armed = false;
  made[0] = memory->made();
}

Errc also_true() noexcept { return failing ? failing->also : Errc::ok; }

bool may_last() noexcept { return failing && failing->lasts; }

std::uint64_t calls_made(const CallKind& kind) noexcept {
  return made[static_cast<std::size_t>(&kind - kKinds)];
}

}  // namespace fab::test

using fab::test::call_fails;

namespace {

struct Start {
  void* (*work)(void*);
  void* argument;
};

void* work_of_device(void* start) {
  const fab::test::DeviceCode device;
  const Start own = *static_cast<Start*>(start);
  std::free(start);
  return own.work(own.argument);
}

}  // namespace

// `call`: the name under which it counts.
#define FAB_WRAP(result, name, call, parameters, arguments) \
  result __real_##name parameters;                          \
  result __wrap_##name parameters {                         \
    if (call_fails(#call)) return static_cast<result>(-1);  \
    return __real_##name arguments;                         \
  }

extern "C" {

FAB_WRAP(ssize_t, read, read, (int fd, void* to, size_t size), (fd, to, size))
FAB_WRAP(ssize_t, pread, pread, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
// What is full is written for whoever waits for it to be readable. There is a sign for him, then.
ssize_t __real_write(int fd, const void* from, size_t size);
ssize_t __wrap_write(int fd, const void* from, size_t size) {
  const bool full = call_fails("write");
  const ssize_t written = __real_write(fd, from, size);
  if (!full) return written;
  errno = EAGAIN;
  return -1;
}
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
  return call_fails("mmap") ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

// What is taken from a poller cannot fail to be taken from it.
int __real_epoll_ctl(int poller, int what, int fd, epoll_event* event);
int __wrap_epoll_ctl(int poller, int what, int fd, epoll_event* event) {
  return what == EPOLL_CTL_ADD && call_fails("epoll_ctl") ? -1 : __real_epoll_ctl(poller, what, fd, event);
}

void* __real_dlopen(const char* name, int flags);
void* __wrap_dlopen(const char* name, int flags) {
  return call_fails("dlopen") ? nullptr : __real_dlopen(name, flags);
}

void* __real_dlsym(void* handle, const char* name);
void* __wrap_dlsym(void* handle, const char* name) {
  void* const real = __real_dlsym(handle, name);
  return handle == RTLD_NEXT || handle == RTLD_DEFAULT ? real : fab::test::device_call(name, real);
}

int __real_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)());
int __wrap_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)()) {
  return call_fails("pthread_atfork") ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? static_cast<mode_t>(va_arg(rest, int)) : 0;
  va_end(rest);
  return call_fails("open") ? -1 : __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...) {
  va_list rest;
  va_start(rest, what);
  void* const argument = va_arg(rest, void*);  // one register, whatever its type
  va_end(rest);
  return call_fails("fcntl") ? -1 : __real_fcntl(fd, what, argument);
}

int __real_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...) {
  va_list rest;
  va_start(rest, what);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  return call_fails("ioctl") ? -1 : __real_ioctl(fd, what, argument);
}

long __real_syscall(long number, ...);
// Passes six arguments on, however many there are, as syscall() itself does.
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  const char* const name = number == SYS_pidfd_open     ? "pidfd_open"
                           : number == SYS_epoll_pwait2 ? "epoll_pwait2"
                                                        : nullptr;
  if (name && call_fails(name)) return -1;
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                        arguments[5]);
}

// std::thread calls it from the standard library, where the linker changes nothing.
__attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                          void* (*work)(void*), void* argument) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (fab::test::in_device) {
    const auto start = static_cast<Start*>(std::malloc(sizeof(Start)));
    *start = {work, argument};
    return real(thread, attributes, work_of_device, start);
  }
  return call_fails("pthread_create") ? EAGAIN : real(thread, attributes, work, argument);
}
}
