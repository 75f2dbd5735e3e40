#include "fabric/memory_region.h"

#include <algorithm>
#include <string>

#include "fabric/counter.h"
#include "fabric/domain_core.h"

namespace fab {

MemoryRegion::MemoryRegion(std::shared_ptr<DomainCore> domain, Parameters parameters)
    : domain_(std::move(domain)), parameters_(std::move(parameters)) {
  const auto invalid = [](const std::string& why) {
    return Error(Errc::invalid, "cannot register memory: " + why);
  };
  const Info& info = domain_->info();
  if (parameters_.buffers.empty()) throw invalid("no buffer was given");
  if (parameters_.buffers.size() > info.mr_iov_limit)
    throw invalid(std::to_string(parameters_.buffers.size()) +
                  " buffers, and the domain takes at most mr_iov_limit = " +
                  std::to_string(info.mr_iov_limit) + " in one region");
  if (parameters_.access & ~access::kAll) throw invalid("access has bits that are none of the six rights");
  for (const iovec& buffer : parameters_.buffers) {
    const auto start = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    if (buffer.iov_len == 0) throw invalid("a buffer has length 0");
    if (start + buffer.iov_len - 1 < start) throw invalid("a buffer runs past the end of the address space");
    length_ += buffer.iov_len;
  }
  const DomainOptions& options = domain_->options();
  if (options.mr_mode & mr_mode::kVirtAddr) base_ = address();
  if ((parameters_.access & access::kRemote) == 0) return;  // such regions take no key (MR-20)

  RegionTable& table = domain_->regions();
  const bool library_chooses = (options.mr_mode & mr_mode::kProvKey) != 0;
  if (library_chooses && options.strict_keys && parameters_.requested_key != kNoKey)
    throw Error(Errc::key_rejected,
                "key " + std::to_string(parameters_.requested_key) +
                    " was asked for, but in this domain (PROV_KEY, strict_keys) the library chooses keys");
  key_ =
      library_chooses || parameters_.requested_key == kNoKey ? table.fresh_key() : parameters_.requested_key;
  index_ = table.insert({.key = key_,
                         .base = base_,
                         .buffers = parameters_.buffers,
                         .access = parameters_.access,
                         .flags = parameters_.flags,
                         .file = parameters_.file,
                         .file_offset = parameters_.file_offset});
}

MemoryRegion::~MemoryRegion() { close({}); }

bool MemoryRegion::enabled() const noexcept { return !closed(); }

RemoteRegion MemoryRegion::remote() {
  if (closed()) throw Error(Errc::closed, "the region is closed");
  if (index_ < 0)
    throw Error(Errc::access,
                "the region grants no remote rights, so there is nothing to give to peers; register it with "
                "REMOTE_READ or REMOTE_WRITE");
  if (!enrolled_) {
    domain_->domain().enroll(*this);
    enrolled_ = true;
  }
  return {.key = key_, .base = base_, .length = length_, .access = parameters_.access, .parts = {}};
}

void MemoryRegion::bind(std::shared_ptr<Counter> counter) {
  if (closed()) throw Error(Errc::closed, "the region is closed");
  if (index_ < 0)
    throw Error(Errc::invalid, "the region grants no remote rights, so there is nothing to count");
  domain_->regions().bind_counter(static_cast<std::uint32_t>(index_), counter->index());
  counters_.push_back(std::move(counter));
}

bool MemoryRegion::close(Deadline deadline) {
  const std::lock_guard lock(closing_);
  if (state_.load() == State::closed) return true;
  const auto index = static_cast<std::uint32_t>(index_);
  if (state_.load() == State::open) {
    state_.store(State::closing);
    if (index_ >= 0) domain_->start_retiring(index);
  }
  if (index_ >= 0 && !domain_->retired(index, deadline)) return false;
  if (enrolled_) domain_->domain().withdraw(*this);
  counters_.clear();
  parameters_.keep_alive.reset();
  state_.store(State::closed);
  return true;
}

std::vector<iovec> MemoryRegion::slice(std::uint64_t offset, std::uint64_t length) const {
  if (closed()) throw Error(Errc::closed, "the region is closed");
  if (offset > length_ || length > length_ - offset)
    throw Error(Errc::bounds, "[" + std::to_string(offset) + ", " + std::to_string(offset) + " + " +
                                  std::to_string(length) + ") is not inside the region of " +
                                  std::to_string(length_) + " bytes");
  std::vector<iovec> pieces;
  for (const iovec& buffer : parameters_.buffers) {
    if (offset >= buffer.iov_len) {
      offset -= buffer.iov_len;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(length, buffer.iov_len - offset);
    if (part)
      pieces.push_back({static_cast<std::byte*>(buffer.iov_base) + offset, static_cast<std::size_t>(part)});
    length -= part;
    offset = 0;
  }
  return pieces;
}

}  // namespace fab
