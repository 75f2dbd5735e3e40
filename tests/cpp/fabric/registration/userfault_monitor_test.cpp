#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/memory/mapping.h"
#include "base/memory/memory_map.h"
#include "fabric/registration/memory_monitor.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

MemoryMonitor* monitor_here() {
  try {
    return &userfault_monitor();
  } catch (const Error& error) {
    MESSAGE("skipped: ", error.what());
    return nullptr;
  }
}

AddressRange map(std::size_t length, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1) {
  void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  REQUIRE(data != MAP_FAILED);
  return {.start = reinterpret_cast<std::uint64_t>(data), .length = length};
}
void* pointer(AddressRange range) { return reinterpret_cast<void*>(range.start); }

struct Reader {
  explicit Reader(const VanishLog& of) : log(of) {}
  std::vector<AddressRange> read() {
    std::vector<AddressRange> found;
    position = log.read(position, [&](AddressRange range) {
      if (range.length) found.push_back(range);
    });
    return found;
  }
  const VanishLog& log;
  std::uint64_t position = log.noted();
};

TEST_CASE("who unmaps or discards watched memory sees it in the log on return") {
  MemoryMonitor* monitor = monitor_here();
  if (!monitor) return;
  Reader reader(monitor->log());
  const std::uint64_t page = page_size();
  for (int round = 0; round < 100; ++round) {
    const AddressRange range = map(16 * page);
    REQUIRE(monitor->watch({.start = range.start + 10, .length = 16 * page - 20}));
    CHECK(::madvise(pointer(range), page, MADV_DONTNEED) == 0);
    CHECK(reader.read() == std::vector{AddressRange{.start = range.start, .length = page}});
    CHECK(::munmap(pointer(range), range.length) == 0);
    CHECK(reader.read() == std::vector{range});
    monitor->unwatch(range);
  }
}

TEST_CASE("memory is watched until the last one has ended that") {
  MemoryMonitor* monitor = monitor_here();
  if (!monitor) return;
  Reader reader(monitor->log());
  const AddressRange range = map(16 * page_size());
  const auto told = [&] {
    CHECK(::madvise(pointer(range), range.length, MADV_DONTNEED) == 0);
    return !reader.read().empty();
  };
  CHECK_FALSE(told());
  REQUIRE(monitor->watch(range));
  REQUIRE(monitor->watch(range));
  monitor->unwatch(range);
  CHECK(told());
  monitor->unwatch(range);
  CHECK_FALSE(told());
  ::munmap(pointer(range), range.length);
  CHECK_FALSE(monitor->watch(range));
}

TEST_CASE("memory of files is not watched, that of the library is") {
  const OwnFd own = make_memory_file("pyfab-memory", 1 << 20), other = make_memory_file("other", 1 << 20);
  CHECK(pages_stay_until_unmapped(map(1 << 20)));
  CHECK(pages_stay_until_unmapped(map(1 << 20, MAP_SHARED | MAP_ANONYMOUS)));
  CHECK(pages_stay_until_unmapped(map(1 << 20, MAP_SHARED, own.get())));
  CHECK_FALSE(pages_stay_until_unmapped(map(1 << 20, MAP_SHARED, other.get())));
  CHECK_FALSE(pages_stay_until_unmapped(map(1 << 20, MAP_PRIVATE, other.get())));
  const AddressRange holed = map(1 << 20);
  ::munmap(reinterpret_cast<void*>(holed.start + (1 << 19)), page_size());
  CHECK_FALSE(pages_stay_until_unmapped(holed));
  CHECK(pages_stay_until_unmapped({.start = holed.start, .length = 1 << 19}));
}

TEST_CASE("threads unmap while others watch") {
  MemoryMonitor* monitor = monitor_here();
  if (!monitor) return;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      Reader reader(monitor->log());
      for (int round = 0; round < 200; ++round) {
        const AddressRange range = map(4 * page_size());
        if (!monitor->watch(range)) FAIL_CHECK("not watched");
        ::munmap(pointer(range), range.length);
        const auto vanished = reader.read();
        if (std::ranges::none_of(vanished, [&](const AddressRange& each) { return each.overlaps(range); }))
          FAIL_CHECK("not told of");
        monitor->unwatch(range);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

#ifndef __SANITIZE_THREAD__  // which supports no threads in a child of a process with threads
TEST_CASE("a child has a monitor of its own, and the parent is not told of it") {
  MemoryMonitor* monitor = monitor_here();
  if (!monitor) return;
  Reader reader(monitor->log());
  const AddressRange range = map(4 * page_size());
  REQUIRE(monitor->watch(range));
  const pid_t child = ::fork();
  if (child == 0) {
    ::munmap(pointer(range), range.length);  // nobody to wait for
    MemoryMonitor& own = userfault_monitor();
    Reader mine(own.log());
    const AddressRange another = map(4 * page_size());
    const bool watched = own.watch(another);
    ::munmap(pointer(another), another.length);
    ::_exit(&own != monitor && watched && mine.read() == std::vector{another} ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(reader.read().empty());
  ::munmap(pointer(range), range.length);
  CHECK(reader.read() == std::vector{range});
  monitor->unwatch(range);
}
#endif

}  // namespace
}  // namespace fab
