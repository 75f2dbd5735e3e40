#include "libfabric/domain/region.h"

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstring>
#include <string>
#include <utility>

#include "fabric/segment/region_table.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/queues/counter.h"

namespace fab::fi {
namespace {

std::uint32_t rights(std::uint64_t asked) noexcept {
  struct Pair {
    std::uint64_t theirs;
    std::uint32_t ours;
  };
  static constexpr Pair kPairs[] = {{FI_SEND, access::kSend},
                                    {FI_RECV, access::kRecv},
                                    {FI_READ, access::kRead},
                                    {FI_WRITE, access::kWrite},
                                    {FI_REMOTE_READ, access::kRemoteRead},
                                    {FI_REMOTE_WRITE, access::kRemoteWrite}};
  std::uint32_t found = 0;
  for (const Pair& pair : kPairs)
    if (asked & pair.theirs) found |= pair.ours;
  return found ? found : access::kLocal;
}

}  // namespace

struct MrCalls {
  static int regattr(fid* known, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** mr) {
    return boundary(FI_LOG_MR, "fi_mr_regattr", [&] {
      if (known->fclass != FI_CLASS_DOMAIN) return -FI_EINVAL;
      return Mr::open(object_of_fid<Domain, fid_domain>(known), *attr, flags, mr);
    });
  }
  static int regv(fid* known, const iovec* pieces, std::size_t count, std::uint64_t access,
                  std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** mr, void* context) {
    fi_mr_attr attr{};
    attr.mr_iov = pieces;
    attr.iov_count = count;
    attr.access = access;
    attr.offset = offset;
    attr.requested_key = key;
    attr.context = context;
    return regattr(known, &attr, flags, mr);
  }
  static int reg(fid* known, const void* buffer, std::size_t length, std::uint64_t access,
                 std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** mr, void* context) {
    const iovec piece{const_cast<void*>(buffer), length};
    return regv(known, &piece, 1, access, offset, key, flags, mr, context);
  }
  static int close(fid* known) {
    return boundary(FI_LOG_MR, "fi_close", [&] { return object_of_fid<Mr, fid_mr>(known).close(); });
  }
  static int bind(fid* known, fid* other, std::uint64_t flags) {
    return boundary(FI_LOG_MR, "fi_mr_bind",
                    [&] { return object_of_fid<Mr, fid_mr>(known).bind(other, flags); });
  }
  static int control(fid* known, int command, void* argument) {
    return boundary(FI_LOG_MR, "fi_control", [&] {
      const auto& mr = object_of_fid<Mr, fid_mr>(known);
      if (command == FI_ENABLE) {
        mr.region_->enable();
        return 0;
      }
      if (command != FI_GET_RAW_MR) return -FI_ENOSYS;
      const auto& asked = *static_cast<struct fi_mr_raw_attr*>(argument);
      const int copied = copy_bytes(mr.region_->raw_key(), asked.raw_key, *asked.key_size);
      if (copied == 0) *asked.base_addr = mr.region_->base();
      return copied;
    });
  }

  static fi_ops fid_calls;
  static fi_ops_mr calls;
};

fi_ops MrCalls::fid_calls = fid_ops(close, bind, control);
fi_ops_mr MrCalls::calls = {.size = sizeof(fi_ops_mr), .reg = reg, .regv = regv, .regattr = regattr};

fi_ops_mr& region_calls() noexcept { return MrCalls::calls; }

int Mr::open(Domain& domain, const fi_mr_attr& attr, std::uint64_t flags, fid_mr** out) {
  if (flags & ~(FI_RMA_EVENT | FI_RMA_PMEM)) return -FI_EBADFLAGS;
  if (attr.offset != 0) throw Error(Errc::invalid, "fi_mr_attr::offset must be 0");
  MemoryRegion::Parameters parameters;
  for (std::size_t i = 0; i < attr.iov_count; ++i) parameters.buffers.push_back(attr.mr_iov[i]);
  parameters.access = rights(attr.access);
  const std::uint32_t mode = domain.core()->options().mr_mode;
  if (!(mode & mr_mode::kProvKey)) parameters.requested_key = attr.requested_key;
  if (flags & FI_RMA_EVENT) parameters.flags |= region_flag::kRmaEvent;
  if (flags & FI_RMA_PMEM) parameters.flags |= region_flag::kPersistent;
  if (attr.auth_key_size)
    parameters.auth_keys.emplace_back(reinterpret_cast<const char*>(attr.auth_key), attr.auth_key_size);
  auto region = domain.core()->register_memory(std::move(parameters));
  Mr* const mr = new Mr(domain, std::move(region), attr.context);
  *out = mr;
  if (Eq* const events = domain.events())
    events->push(FI_MR_COMPLETE, {.fid = &mr->fid, .context = attr.context, .data = 0});
  return 0;
}

Mr::Mr(Domain& domain, std::shared_ptr<MemoryRegion> region, void* user_context)
    : fid_mr{}, domain_(domain.users()), region_(std::move(region)) {
  fid = {.fclass = FI_CLASS_MR, .context = user_context, .ops = &MrCalls::fid_calls};
  mem_desc = this;
  key = region_->key();
}

int Mr::bind(::fid* other, std::uint64_t flags) {
  if (other->fclass == FI_CLASS_CNTR) {
    if (flags & ~FI_REMOTE_WRITE) return -FI_EBADFLAGS;
    region_->bind(object_of_fid<Cntr, fid_cntr>(other).counter());
    return 0;
  }
  return -FI_EOPNOTSUPP;
}

int Mr::close() {
  // Whoever is in the middle of an access is waited for: the memory may be freed afterwards.
  region_->close({});
  delete this;
  return 0;
}

}  // namespace fab::fi
