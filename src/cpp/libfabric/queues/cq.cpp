#include "libfabric/queues/cq.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/queues/waiting.h"

namespace fab::fi {
namespace {

constexpr std::size_t kDefaultSize = 4096;
// Posted receives have a place in the queue from the beginning, beside those that the program has asked for.
constexpr std::size_t kRoomForReceives = 16384;

Cq& self(fid_cq* cq) noexcept { return object_of<Cq>(cq); }

Op* op_of(const Completion& told) noexcept {
  return told.flags & kOwnEntry ? reinterpret_cast<Op*>(told.context) : nullptr;
}

bool is_last(const Completion& told) noexcept { return (told.flags & completion_flag::kMore) == 0; }

// An entry as the fullest format has it.
fi_cq_tagged_entry describe(const Completion& told) noexcept {
  fi_cq_tagged_entry entry{};
  entry.flags = entry_flags(told);
  entry.len = told.length;
  entry.data = told.data;
  entry.tag = told.tag;
  if (const Op* const op = op_of(told)) {
    entry.op_context = op->context;
    entry.buf = op->buffer ? op->buffer + told.offset : nullptr;
  } else if ((told.flags & completion_flag::kRemoteWrite) == 0) {
    entry.op_context = reinterpret_cast<void*>(told.context);
  }
  return entry;
}

}  // namespace

std::uint64_t entry_flags(const Completion& told) noexcept {
  struct Pair {
    std::uint32_t ours;
    std::uint64_t theirs;
  };
  static constexpr Pair kPairs[] = {{completion_flag::kRma, FI_RMA},
                                    {completion_flag::kRead, FI_READ},
                                    {completion_flag::kWrite, FI_WRITE},
                                    {completion_flag::kAtomic, FI_ATOMIC},
                                    {completion_flag::kMessage, FI_MSG},
                                    {completion_flag::kRemoteWrite, FI_REMOTE_WRITE},
                                    {completion_flag::kTagged, FI_TAGGED},
                                    {completion_flag::kRemoteData, FI_REMOTE_CQ_DATA},
                                    {completion_flag::kSend, FI_SEND},
                                    {completion_flag::kRecv, FI_RECV},
                                    {completion_flag::kMultiReceive, FI_MULTI_RECV}};
  std::uint64_t flags = 0;
  if (const Op* const op = op_of(told)) flags = op->flags;
  for (const Pair& pair : kPairs)
    if (told.flags & pair.ours) flags |= pair.theirs;
  // The last entry of a receive for several messages tells of no message.
  if (told.flags & completion_flag::kMultiReceive) flags &= ~(FI_RECV | FI_MSG | FI_TAGGED);
  return flags;
}

struct CqCalls {
  static ssize_t read(fid_cq* cq, void* buffer, std::size_t count) {
    return boundary(FI_LOG_CQ, "fi_cq_read", [&] { return self(cq).read(buffer, count, nullptr); });
  }
  static ssize_t readfrom(fid_cq* cq, void* buffer, std::size_t count, fi_addr_t* sources) {
    return boundary(FI_LOG_CQ, "fi_cq_readfrom", [&] { return self(cq).read(buffer, count, sources); });
  }
  static ssize_t readerr(fid_cq* cq, fi_cq_err_entry* entry, std::uint64_t) {
    return boundary(FI_LOG_CQ, "fi_cq_readerr", [&] { return self(cq).read_error(*entry); });
  }
  static ssize_t sread(fid_cq* cq, void* buffer, std::size_t count, const void*, int timeout) {
    return boundary(FI_LOG_CQ, "fi_cq_sread",
                    [&] { return self(cq).wait_read(buffer, count, nullptr, timeout); });
  }
  static ssize_t sreadfrom(fid_cq* cq, void* buffer, std::size_t count, fi_addr_t* sources, const void*,
                           int timeout) {
    return boundary(FI_LOG_CQ, "fi_cq_sreadfrom",
                    [&] { return self(cq).wait_read(buffer, count, sources, timeout); });
  }
  static int signal(fid_cq* cq) {
    return boundary(FI_LOG_CQ, "fi_cq_signal", [&] {
      self(cq).signaled_.store(true);
      self(cq).core_->contexts().wake();
      return 0;
    });
  }
  static const char* strerror(fid_cq*, int provider_error, const void*, char* text, std::size_t length) {
    return error_text(provider_error, text, length);
  }
  static int control(fid* known, int command, void* argument) {
    return boundary(FI_LOG_CQ, "fi_control", [&] {
      const auto& cq = object_of_fid<Cq, fid_cq>(known);
      return tell_wait_object(command, argument, cq.wait_object_, [&] { return cq.queue_->event_fd(); });
    });
  }

  static fi_ops fid_calls;
  static fi_ops_cq calls;
};

fi_ops CqCalls::fid_calls = fid_ops(close_unused<Cq, fid_cq>, bind_nothing, control);
fi_ops_cq CqCalls::calls = {.size = sizeof(fi_ops_cq),
                            .read = read,
                            .readfrom = readfrom,
                            .readerr = readerr,
                            .sread = sread,
                            .sreadfrom = sreadfrom,
                            .signal = signal,
                            .strerror = strerror};

int Cq::open(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cq_attr& attr,
             void* user_context, fid_cq** out) {
  switch (attr.wait_obj) {
    case FI_WAIT_NONE:
    case FI_WAIT_UNSPEC:
      break;
    case FI_WAIT_FD:
      if (core->options().manual_progress)
        throw Error(
            Errc::not_supported_here,
            "a descriptor to wait for (FI_WAIT_FD) needs a thread that makes progress: ask fi_getinfo "
            "for FI_PROGRESS_AUTO");
      break;
    default:
      throw Error(Errc::not_supported_here,
                  "a completion queue has a descriptor to wait for (FI_WAIT_FD), FI_WAIT_UNSPEC or none");
  }
  if (attr.format > FI_CQ_FORMAT_TAGGED) throw Error(Errc::invalid, "unknown format of a completion queue");
  *out = new Cq(core, domain, attr, user_context);
  return 0;
}

Cq::Cq(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cq_attr& attr, void* user_context)
    : fid_cq{},
      core_(core),
      domain_(domain),
      format_(attr.format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr.format),
      wait_object_(attr.wait_obj),
      queue_(core->open_completion_queue((attr.size ? attr.size : kDefaultSize) + kRoomForReceives,
                                         CompletionQueue::WhenFull::refuse)) {
  fid = {.fclass = FI_CLASS_CQ, .context = user_context, .ops = &CqCalls::fid_calls};
  ops = &CqCalls::calls;
  if (wait_object_ == FI_WAIT_FD) queue_->event_fd();  // from now on it tells
}

bool Cq::ready() {
  {
    const LockGuard lock(mutex_);
    if (first_ != end_) return true;
  }
  return !queue_->empty();
}

// Makes sure that there are staged entries; false: there are none.
bool Cq::fill() {
  if (first_ != end_) return true;
  first_ = end_ = 0;
  try {
    end_ = queue_->read(staged_);
  } catch (const Error& error) {
    log(FI_LOG_WARN, FI_LOG_CQ, error.what());
    staged_[end_++] = {.error = error.code()};
  }
  return end_ != 0;
}

void Cq::write_entry(void* buffer, std::size_t at, const Completion& told) noexcept {
  const fi_cq_tagged_entry full = describe(told);
  // Each format begins like the next larger one.
  static constexpr std::size_t kSizes[] = {0, sizeof(fi_cq_entry), sizeof(fi_cq_msg_entry),
                                           sizeof(fi_cq_data_entry), sizeof(fi_cq_tagged_entry)};
  const std::size_t size = kSizes[format_];
  std::memcpy(static_cast<std::byte*>(buffer) + at * size, &full, size);
}

// Up to `count` entries that are there, -FI_EAVAIL where an error is the first, or -FI_EAGAIN.
ssize_t Cq::take(void* buffer, std::size_t count, fi_addr_t* sources) {
  const LockGuard lock(mutex_);
  std::size_t taken = 0;
  while (taken < count && fill()) {
    const Completion& told = staged_[first_];
    if (told.error != Errc::ok) break;
    write_entry(buffer, taken, told);
    if (sources) sources[taken] = told.source;
    if (Op* const op = op_of(told)) op->entry_read(is_last(told));
    ++first_;
    ++taken;
  }
  if (taken) return static_cast<ssize_t>(taken);
  return fill() && staged_[first_].error != Errc::ok ? -FI_EAVAIL : -FI_EAGAIN;
}

ssize_t Cq::read(void* buffer, std::size_t count, fi_addr_t* sources) {
  if (const ssize_t taken = take(buffer, count, sources); taken != -FI_EAGAIN) return taken;
  driven_.progress();
  return take(buffer, count, sources);
}

ssize_t Cq::wait_read(void* buffer, std::size_t count, fi_addr_t* sources, int timeout) {
  if (wait_object_ == FI_WAIT_NONE) return -FI_EINVAL;
  const Deadline deadline = deadline_of(timeout);
  for (;;) {
    if (const ssize_t taken = read(buffer, count, sources); taken != -FI_EAGAIN) return taken;
    struct Waiting {
      Wakeup& wakeup;
      explicit Waiting(Wakeup& what) : wakeup(what) { wakeup.add_waiter(); }
      ~Waiting() { wakeup.remove_waiter(); }
    } const waiting(queue_->wakeup());
    core_->wait([&] { return ready() || signaled_.load(); }, deadline);
    if (signaled_.exchange(false)) return -FI_EAGAIN;
    if (deadline.passed()) return take(buffer, count, sources);
  }
}

ssize_t Cq::read_error(fi_cq_err_entry& entry) {
  const LockGuard lock(mutex_);
  if (!fill() || staged_[first_].error == Errc::ok) return -FI_EAGAIN;
  const Completion& told = staged_[first_++];
  const fi_cq_tagged_entry full = describe(told);
  entry.op_context = full.op_context;
  entry.flags = full.flags;
  entry.len = full.len;
  entry.buf = full.buf;
  entry.data = full.data;
  entry.tag = full.tag;
  entry.olen = told.overflow;
  entry.err = static_cast<int>(told.error);
  entry.prov_errno = entry.err;
  // The program's own memory stands here from version 1.5 on, and nothing is put there.
  entry.err_data_size = 0;
  if (Op* const op = op_of(told)) op->entry_read(is_last(told));
  return 1;
}

}  // namespace fab::fi
