#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include <array>
#include <atomic>
#include <memory>

#include "base/locks/mutex.h"
#include "fabric/domain/domain_core.h"
#include "libfabric/plugin/uses.h"
#include "libfabric/queues/driven.h"

namespace fab::fi {

// A completion queue (fi_cq(3)) over one of the core. Safe from any thread.
class Cq final : public fid_cq {
 public:
  // fi_cq_open(3). `domain` counts its users.
  static int open(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cq_attr& attr,
                  void* user_context, fid_cq** out);

  const std::shared_ptr<CompletionQueue>& queue() const noexcept { return queue_; }
  Driven& driven() noexcept { return driven_; }
  Users& users() noexcept { return users_; }
  // Whether a read would find something: for fi_trywait(3).
  bool ready();

 private:
  friend struct CqCalls;
  Cq(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cq_attr& attr, void* user_context);
  ssize_t take(void* buffer, std::size_t count, fi_addr_t* sources);
  ssize_t read(void* buffer, std::size_t count, fi_addr_t* sources);
  ssize_t wait_read(void* buffer, std::size_t count, fi_addr_t* sources, int timeout);
  ssize_t read_error(fi_cq_err_entry& entry);
  bool fill() FAB_REQUIRES(mutex_);
  void write_entry(void* buffer, std::size_t at, const Completion& told) noexcept;

  const std::shared_ptr<DomainCore> core_;
  const Use domain_;
  Users users_{0};
  const fi_cq_format format_;
  const fi_wait_obj wait_object_;
  const std::shared_ptr<CompletionQueue> queue_;
  Driven driven_;
  std::atomic<bool> signaled_{false};
  Mutex mutex_;
  // Entries that were taken from the core and not by the program yet: those behind an error.
  std::array<Completion, 16> staged_ FAB_GUARDED_BY(mutex_);
  std::size_t first_ FAB_GUARDED_BY(mutex_) = 0, end_ FAB_GUARDED_BY(mutex_) = 0;
};

// What fi_cq(3) calls the kind of event that a completion of the core tells of.
std::uint64_t entry_flags(const Completion& told) noexcept;

}  // namespace fab::fi
