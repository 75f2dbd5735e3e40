#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "mock_verbs/objects.h"

namespace mock {

// The kernel copies, so that an address without memory is an outcome.
bool copy(void* to, const void* from, std::size_t length) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  while (length) {
    const iovec here{.iov_base = target, .iov_len = length};
    const iovec there{.iov_base = const_cast<char*>(source), .iov_len = length};
    const ssize_t done = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (done <= 0) return false;
    target += done;
    source += done;
    length -= static_cast<std::size_t>(done);
  }
  return true;
}

Mr* find_region(std::uint32_t key, std::uint64_t address, std::uint64_t length, const ibv_pd* pd,
                int rights) {
  const auto found = world().regions.find(key);
  if (found == world().regions.end()) return nullptr;
  Mr& mr = *found->second;
  const std::uint64_t start = mr.shown;
  if (mr.pd != pd || (mr.access & rights) != rights || address < start || address - start > mr.length ||
      length > mr.length - (address - start))
    return nullptr;
  return &mr;
}

namespace {

// A device pins the pages, which have to be there, and writable if it may write.
bool pages_there(void* start, std::size_t length, int access) {
  constexpr int kWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(start) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(start) + length + page - 1) / page * page;
  return ::madvise(reinterpret_cast<void*>(first), end - first,
                   (access & kWrites) ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
}

}  // namespace
}  // namespace mock

using namespace mock;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(EIO), nullptr;
  if (const int error = world().faults.refusal("alloc_pd")) return fail(error), nullptr;
  auto* const pd = new Pd{};
  pd->context = context;
  ++world().domains;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  const Lock lock(world().mutex);
  if (static_cast<Pd*>(pd)->users != 0) return EBUSY;
  --world().domains;
  delete static_cast<Pd*>(pd);
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* start, std::size_t length, std::uint64_t shown, unsigned given) {
  const int access = static_cast<int>(given);
  constexpr int kNeedWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  {
    Lock lock(world().mutex);
    World& all = world();
    ++all.held;
    all.faults_changed.wait(lock, [&] { return length < all.faults.hold_mr; });
    --all.held;
    if (all.removed) return fail(EIO), nullptr;
    if (((access & kNeedWrite) && !(access & IBV_ACCESS_LOCAL_WRITE)) || length == 0 ||
        ((access & IBV_ACCESS_ON_DEMAND) && !all.faults.odp) || length > all.faults.max_mr_size)
      return fail(EINVAL), nullptr;
    if (all.regions.size() >= all.faults.mr_limit) return fail(ENOMEM), nullptr;
    if (const int error = all.faults.refusal("reg_mr")) return fail(error), nullptr;
  }
  // Not under the lock, because a page may take long to come.
  if (!pages_there(start, length, access)) return fail(EFAULT), nullptr;
  const Lock lock(world().mutex);
  auto* const mr = new Mr{};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = start;
  mr->length = length;
  mr->access = access;
  mr->shown = shown;
  auto& keys = world().free_keys;
  if (world().faults.last_key_first && !keys.empty()) {
    mr->rkey = keys.back();
    keys.pop_back();
  } else {
    mr->rkey = world().next_key += 0x101;
  }
  mr->lkey = mr->rkey;
  world().regions[mr->rkey] = mr;
  if (access & IBV_ACCESS_REMOTE_WRITE)
    world().longest_writable = std::max<std::uint64_t>(world().longest_writable, length);
  world().relaxed += (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
  ++static_cast<Pd*>(pd)->users;
  return mr;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* start, std::size_t length, int access) {
  return ibv_reg_mr_iova2(pd, start, length, reinterpret_cast<std::uint64_t>(start),
                          static_cast<unsigned>(access));
}

int ibv_dereg_mr(ibv_mr* mr) {
  const Lock lock(world().mutex);
  world().regions.erase(mr->rkey);
  world().free_keys.push_back(mr->rkey);
  --static_cast<Pd*>(mr->pd)->users;
  delete static_cast<Mr*>(mr);
  return 0;
}
}
