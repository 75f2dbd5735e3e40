#include "libfabric/queues/eq.h"

#include <rdma/fi_errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/queues/waiting.h"

namespace fab::fi {
namespace {

Eq& self(fid_eq* eq) noexcept { return object_of<Eq>(eq); }

}  // namespace

struct EqCalls {
  static ssize_t read(fid_eq* eq, std::uint32_t* event, void* buffer, std::size_t length,
                      std::uint64_t flags) {
    return boundary(FI_LOG_EQ, "fi_eq_read", [&] { return self(eq).read(event, buffer, length, flags); });
  }
  static ssize_t readerr(fid_eq* eq, fi_eq_err_entry* entry, std::uint64_t flags) {
    return boundary(FI_LOG_EQ, "fi_eq_readerr", [&] { return self(eq).read_error(*entry, flags); });
  }
  static ssize_t write(fid_eq* eq, std::uint32_t event, const void* buffer, std::size_t length,
                       std::uint64_t) {
    return boundary(FI_LOG_EQ, "fi_eq_write", [&]() -> ssize_t {
      if (!self(eq).writable_) return -FI_EINVAL;
      const auto* const bytes = static_cast<const std::byte*>(buffer);
      self(eq).add({.kind = event, .bytes = {bytes, bytes + length}});
      return static_cast<ssize_t>(length);
    });
  }
  static ssize_t sread(fid_eq* eq, std::uint32_t* event, void* buffer, std::size_t length, int timeout,
                       std::uint64_t flags) {
    return boundary(FI_LOG_EQ, "fi_eq_sread",
                    [&] { return self(eq).wait_read(event, buffer, length, timeout, flags); });
  }
  static const char* strerror(fid_eq*, int provider_error, const void*, char* text, std::size_t length) {
    return error_text(provider_error, text, length);
  }
  static int control(fid* known, int command, void* argument) {
    const auto& eq = object_of_fid<Eq, fid_eq>(known);
    return tell_wait_object(command, argument, eq.wait_object_, [&] { return eq.told_.get(); });
  }

  static fi_ops fid_calls;
  static fi_ops_eq calls;
};

fi_ops EqCalls::fid_calls = fid_ops(close_unused<Eq, fid_eq>, bind_nothing, control);
fi_ops_eq EqCalls::calls = {.size = sizeof(fi_ops_eq),
                            .read = read,
                            .readerr = readerr,
                            .write = write,
                            .sread = sread,
                            .strerror = strerror};

int Eq::open(Users& fabric, const fi_eq_attr& attr, void* user_context, fid_eq** out) {
  if (attr.wait_obj != FI_WAIT_NONE && attr.wait_obj != FI_WAIT_UNSPEC && attr.wait_obj != FI_WAIT_FD)
    throw Error(Errc::not_supported_here,
                "an event queue has a descriptor to wait for (FI_WAIT_FD), FI_WAIT_UNSPEC or none");
  *out = new Eq(fabric, attr, user_context);
  return 0;
}

Eq::Eq(Users& fabric, const fi_eq_attr& attr, void* user_context)
    : fid_eq{},
      fabric_(fabric),
      wait_object_(attr.wait_obj),
      writable_((attr.flags & FI_WRITE) != 0),
      told_(check_call(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  fid = {.fclass = FI_CLASS_EQ, .context = user_context, .ops = &EqCalls::fid_calls};
  ops = &EqCalls::calls;
}

void Eq::add(Event event) {
  const LockGuard lock(mutex_);
  events_.push_back(std::move(event));
  const std::uint64_t one = 1;
  if (events_.size() == 1) [[maybe_unused]]
    const auto written = ::write(told_.get(), &one, sizeof one);
  came_.notify_all();
}

void Eq::taken() {
  events_.pop_front();
  std::uint64_t value;
  if (events_.empty()) [[maybe_unused]]
    const auto got = ::read(told_.get(), &value, sizeof value);
}

void Eq::push(std::uint32_t event, const fi_eq_entry& entry) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&entry);
  add({.kind = event, .bytes = {bytes, bytes + sizeof entry}});
}

void Eq::push_error(const fi_eq_err_entry& entry) { add({.failed = true, .error = entry}); }

int BoundEq::bind(fid* other) noexcept {
  if (other->fclass != FI_CLASS_EQ) return -FI_EINVAL;
  eq_ = &object_of_fid<Eq, fid_eq>(other);
  use_ = Use(eq_->users());
  return 0;
}

bool Eq::ready() {
  const LockGuard lock(mutex_);
  return !events_.empty();
}

ssize_t Eq::read(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags) {
  const LockGuard lock(mutex_);
  if (events_.empty()) return -FI_EAGAIN;
  const Event& first = events_.front();
  if (first.failed) return -FI_EAVAIL;
  if (length < first.bytes.size()) return -FI_ETOOSMALL;
  *event = first.kind;
  std::ranges::copy(first.bytes, static_cast<std::byte*>(buffer));
  const auto size = static_cast<ssize_t>(first.bytes.size());
  if (!(flags & FI_PEEK)) taken();
  return size;
}

ssize_t Eq::read_error(fi_eq_err_entry& entry, std::uint64_t flags) {
  const LockGuard lock(mutex_);
  if (events_.empty() || !events_.front().failed) return -FI_EAGAIN;
  const fi_eq_err_entry& found = events_.front().error;
  entry.fid = found.fid;
  entry.context = found.context;
  entry.data = found.data;
  entry.err = found.err;
  entry.prov_errno = found.prov_errno;
  entry.err_data_size = 0;
  if (!(flags & FI_PEEK)) taken();
  return sizeof entry;
}

ssize_t Eq::wait_read(std::uint32_t* event, void* buffer, std::size_t length, int timeout,
                      std::uint64_t flags) {
  {
    UniqueLock lock(mutex_);
    const auto there = [&]() FAB_REQUIRES(mutex_) { return !events_.empty(); };
    if (timeout < 0)
      came_.wait(lock.native(), there);
    else
      came_.wait_for(lock.native(), std::chrono::milliseconds(timeout), there);
  }
  return read(event, buffer, length, flags);
}

}  // namespace fab::fi
