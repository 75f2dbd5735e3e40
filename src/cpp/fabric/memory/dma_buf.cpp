#include "fabric/memory/dma_buf.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <map>
#include <string>
#include <system_error>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

// The open dma-bufs, by address. Never freed, because some may outlive every static object.
struct OpenDmaBufs {
  SharedMutex mutex;
  std::map<std::uint64_t, const DmaBuf*> by_start FAB_GUARDED_BY(mutex);
};
OpenDmaBufs& open_dma_bufs() {
  static auto* const all = new OpenDmaBufs;
  return *all;
}

std::optional<Mapping> map_dma_buf(int fd, std::uint64_t length, bool writable) {
  try {
    return Mapping::shared(fd, 0, length, writable);
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace

DmaBuf::DmaBuf(int fd, std::uint64_t offset, std::optional<std::uint64_t> length)
    : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), offset_(offset) {
  const std::string what = "file descriptor " + std::to_string(fd);
  if (!fd_.valid() && errno == EBADF) throw Error(Errc::invalid, what + " is not open");
  check_call(fd_.get(), "fcntl");
  const auto end = ::lseek(fd_.get(), 0, SEEK_END);
  if (end <= 0)
    throw Error(Errc::invalid, what + " has no size: pass that of a dma-buf, as its exporter gave it");
  const auto size = static_cast<std::uint64_t>(end);
  if (offset % page_size() != 0)
    throw Error(Errc::invalid, "offset=" + std::to_string(offset) + ": it is a multiple of the page size, " +
                                   std::to_string(page_size()) + " bytes");
  if (offset >= size || length.value_or(1) == 0 || length.value_or(1) > size - offset)
    throw Error(Errc::invalid,
                "offset=" + std::to_string(offset) + (length ? ", length=" + std::to_string(*length) : "") +
                    ": at least one byte of the dma-buf is meant, and it has " + std::to_string(size));
  const std::uint64_t part_end = length ? offset + *length : size;
  auto mapped = map_dma_buf(fd_.get(), part_end, true);
  if (!mapped) {
    mapped = map_dma_buf(fd_.get(), part_end, false);
    hidden_ = !mapped;
    writable_ = hidden_;
  }
  memory_ = mapped ? std::move(*mapped) : Mapping::reserved(part_end);

  OpenDmaBufs& all = open_dma_bufs();
  const LockGuard lock(all.mutex);
  all.by_start.emplace(range().start, this);
  ++count;
  if (hidden_) ++hidden_count;
}

// Leaves the table before its memory is unmapped, because somebody else may have the addresses then.
DmaBuf::~DmaBuf() {
  OpenDmaBufs& all = open_dma_bufs();
  const LockGuard lock(all.mutex);
  all.by_start.erase(range().start);
  --count;
  if (hidden_) --hidden_count;
}

bool DmaBuf::sync(std::uint64_t flags) const {
  dma_buf_sync argument{.flags = flags};
  if (::ioctl(fd_.get(), DMA_BUF_IOCTL_SYNC, &argument) == 0) return true;
  if (errno == EINTR || errno == EAGAIN) return false;
  if (errno == ENOTTY)
    throw Error(Errc::invalid, "the file is no dma-buf: accesses of processors to it need no announcement");
  throw std::system_error(errno, std::generic_category(), "DMA_BUF_IOCTL_SYNC");
}

template <class Test>
bool DmaBuf::search(AddressRange range, const Test& test) noexcept {
  if (range.length == 0 || count.load(std::memory_order_relaxed) == 0) return false;
  OpenDmaBufs& all = open_dma_bufs();
  const SharedLock lock(all.mutex);
  auto at = all.by_start.upper_bound(range.start);
  if (at != all.by_start.begin()) --at;
  for (; at != all.by_start.end() && at->first < range.end(); ++at)
    if (at->second->range().overlaps(range) && test(*at->second)) return true;
  return false;
}

std::optional<DmaBuf::Place> DmaBuf::find(AddressRange range) noexcept {
  std::optional<Place> place;
  search(range, [&](const DmaBuf& buffer) {
    if (!buffer.range().contains(range)) return false;
    place = Place{.fd = OwnFd(::fcntl(buffer.fd(), F_DUPFD_CLOEXEC, 0)),
                  .offset = range.start - buffer.range().start,
                  .hidden = buffer.hidden_};
    return true;
  });
  return place;
}

bool DmaBuf::any_in(AddressRange range) noexcept {
  return search(range, [](const DmaBuf&) { return true; });
}

bool DmaBuf::hides_any(AddressRange range) noexcept {
  return search(range, [](const DmaBuf& buffer) { return buffer.hidden(); });
}

}  // namespace fab
