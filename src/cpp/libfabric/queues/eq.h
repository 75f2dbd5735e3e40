#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include <condition_variable>
#include <deque>
#include <vector>

#include "base/fd.h"
#include "base/locks/mutex.h"
#include "libfabric/plugin/uses.h"

namespace fab::fi {

// An event queue (fi_eq(3)): what calls that were asked to tell later have to say, and what the program
// writes. Safe from any thread.
class Eq final : public fid_eq {
 public:
  static int open(Users& fabric, const fi_eq_attr& attr, void* user_context, fid_eq** out);

  void push(std::uint32_t event, const fi_eq_entry& entry);
  void push_error(const fi_eq_err_entry& entry);
  Users& users() noexcept { return users_; }
  bool ready();

 private:
  friend struct EqCalls;
  struct Event {
    std::uint32_t kind = 0;
    std::vector<std::byte> bytes{};
    bool failed = false;
    fi_eq_err_entry error{};
  };
  Eq(Users& fabric, const fi_eq_attr& attr, void* user_context);
  void add(Event event);
  ssize_t read(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags);
  ssize_t read_error(fi_eq_err_entry& entry, std::uint64_t flags);
  ssize_t wait_read(std::uint32_t* event, void* buffer, std::size_t length, int timeout, std::uint64_t flags);
  void taken() FAB_REQUIRES(mutex_);

  const Use fabric_;
  Users users_{0};
  const fi_wait_obj wait_object_;
  const bool writable_;
  Mutex mutex_;
  std::condition_variable came_;
  std::deque<Event> events_ FAB_GUARDED_BY(mutex_);
  OwnFd told_;  // an eventfd; readable while there are events
};

// The event queue that was bound to an object, which must not close before that.
class BoundEq final {
 public:
  // fi_av_bind(3), fi_domain_bind(3).
  int bind(fid* other) noexcept;
  Eq* get() const noexcept { return eq_; }  // null: none was bound

 private:
  Eq* eq_ = nullptr;
  Use use_;
};

}  // namespace fab::fi
