#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/fd.h"
#include "base/locks/fork_gate.h"
#include "base/locks/mutex.h"
#include "base/memory/mapping.h"
#include "base/memory/memory_map.h"
#include "base/process/process.h"
#include "base/process/quiet_thread.h"
#include "fabric/registration/counted_ranges.h"
#include "fabric/registration/memory_monitor.h"
#include "fabric/types/error.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace fab {
namespace {

// The monitor wants events and never page faults. So it asks for UFFD_USER_MODE_ONLY, which needs no
// privilege since Linux 5.11. The device file helps where a container filters the system call.
OwnFd open_userfaultfd() {
  const auto by_call = [](int flags) {
    return OwnFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)));
  };
  OwnFd fd = by_call(UFFD_USER_MODE_ONLY);
  const int error = errno;
  if (!fd.valid()) fd = by_call(0);
  if (!fd.valid()) {
    const OwnFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.valid())
      fd = OwnFd(::ioctl(device.get(), USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  }
  if (!fd.valid() && is_shortage(error))
    throw std::system_error(error, std::generic_category(), "userfaultfd");
  if (!fd.valid())
    throw Error(Errc::not_supported,
                "userfaultfd cannot be opened: " + std::generic_category().message(error) +
                    "; allow the system call or give access to /dev/userfaultfd");
  uffdio_api api{.api = UFFD_API,
                 .features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                             UFFD_FEATURE_PAGEFAULT_FLAG_WP,
                 .ioctls = 0};
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0)
    throw Error(Errc::not_supported,
                "this kernel's userfaultfd tells of no unmapped memory, or has no write-protect mode");
  return fd;
}

// Ranges are registered in write-protect mode and nothing is ever protected, so no page fault waits for this
// monitor. The kernel only holds a thread that takes watched pages away until the reader has read the event.
class UserfaultMonitor final : public MemoryMonitor {
 public:
  UserfaultMonitor() : fd_(open_userfaultfd()) {
    start_quiet_thread("pyfab-monitor", [this] { read_events(); }).detach();
  }

  bool watch(AddressRange range) noexcept override try {
    const AddressRange pages = whole_pages(range);
    if (failed_.load() || pages.end() < pages.start || !pages_stay_until_unmapped(pages)) return false;
    const LockGuard lock(mutex_);
    watched_.add(pages);
    // A watched range is registered again, because the pages may be new ones at a former address.
    uffdio_register request{
        .range = {.start = pages.start, .len = pages.length}, .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
    if (::ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0) return true;
    end_watch(pages);
    return false;
  } catch (const std::exception&) {
    return false;
  }

  void unwatch(AddressRange range) noexcept override {
    const LockGuard lock(mutex_);
    end_watch(whole_pages(range));
  }

  const VanishLog& log() const noexcept override { return log_; }

 private:
  static AddressRange whole_pages(AddressRange range) noexcept {
    const std::uint64_t page = page_size();
    const std::uint64_t start = range.start / page * page;
    return {.start = start, .length = (range.end() - start + page - 1) / page * page};
  }

  // Without memory to count parts of ranges the pages stay watched, which costs nothing but needless events.
  void end_watch(AddressRange pages) noexcept FAB_REQUIRES(mutex_) try {
    watched_.remove(pages, [&](AddressRange free) {
      uffdio_range request{.start = free.start, .len = free.length};
      // This fails where nothing is mapped any more, which does no harm.
      ::ioctl(fd_.get(), UFFDIO_UNREGISTER, &request);
    });
  } catch (const std::bad_alloc&) {
    return;
  }

  // Takes no lock and allocates nothing: see VanishLog.
  void read_events() noexcept {
    for (;;) {
      pollfd poll{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&poll, 1, -1) < 0) continue;
      log_.note();
      uffd_msg message;
      const auto length = ::read(fd_.get(), &message, sizeof message);
      if (length == sizeof message) {
        log_.publish(range_of(message));
      } else if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
        log_.publish({});
      } else {
        // Some code has closed a descriptor that it did not own.
        failed_.store(true);
        log_.publish(VanishLog::kEverything);
        return;
      }
    }
  }

  static AddressRange range_of(const uffd_msg& message) noexcept {
    switch (message.event) {
      case UFFD_EVENT_UNMAP:
      case UFFD_EVENT_REMOVE:
        return {.start = message.arg.remove.start,
                .length = message.arg.remove.end - message.arg.remove.start};
      case UFFD_EVENT_REMAP:
        return {.start = message.arg.remap.from, .length = message.arg.remap.len};
      default:
        return {};
    }
  }

  OwnFd fd_;
  VanishLog log_;
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  CountedRanges watched_ FAB_GUARDED_BY(mutex_);
};

}  // namespace

MemoryMonitor& userfault_monitor() {
  static constinit Mutex mutex;
  // The monitor is never destroyed, because the kernel waits for its reader as long as anything is watched.
  static UserfaultMonitor* monitor FAB_GUARDED_BY(mutex) = nullptr;
  static std::uint32_t generation FAB_GUARDED_BY(mutex) = 0;
  const ForkGate gate;  // a child makes its own, and shall find the lock free
  const LockGuard lock(mutex);
  if (!monitor || generation != fork_generation()) {
    monitor = new UserfaultMonitor;
    generation = fork_generation();
  }
  return *monitor;
}

}  // namespace fab
