#include "libfabric/queues/counter.h"

#include <rdma/fi_errno.h>

#include <chrono>

#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/queues/waiting.h"

namespace fab::fi {
namespace {

Cntr& self(fid_cntr* counter) noexcept { return object_of<Cntr>(counter); }

}  // namespace

struct CntrCalls {
  static std::uint64_t read(fid_cntr* counter) {
    std::uint64_t value = self(counter).counter_->value();
    boundary(FI_LOG_CNTR, "fi_cntr_read", [&] {
      self(counter).progress();
      value = self(counter).counter_->read();
      return 0;
    });
    return value;
  }
  static std::uint64_t readerr(fid_cntr* counter) {
    boundary(FI_LOG_CNTR, "fi_cntr_readerr", [&] {
      self(counter).progress();
      return 0;
    });
    return self(counter).counter_->errors();
  }
  static int add(fid_cntr* counter, std::uint64_t amount) {
    self(counter).counter_->add(amount);
    return 0;
  }
  static int set(fid_cntr* counter, std::uint64_t value) {
    self(counter).counter_->set(value);
    return 0;
  }
  static int adderr(fid_cntr* counter, std::uint64_t amount) {
    self(counter).counter_->add_errors(amount);
    return 0;
  }
  static int seterr(fid_cntr* counter, std::uint64_t value) {
    self(counter).counter_->set_errors(value);
    return 0;
  }
  static int wait(fid_cntr* counter, std::uint64_t threshold, int timeout) {
    return boundary(FI_LOG_CNTR, "fi_cntr_wait", [&] { return self(counter).wait(threshold, timeout); });
  }

  static fi_ops fid_calls;
  static fi_ops_cntr calls;
};

fi_ops CntrCalls::fid_calls = fid_ops(close_unused<Cntr, fid_cntr>);
fi_ops_cntr CntrCalls::calls = {.size = sizeof(fi_ops_cntr),
                                .read = read,
                                .readerr = readerr,
                                .add = add,
                                .set = set,
                                .wait = wait,
                                .adderr = adderr,
                                .seterr = seterr};

int Cntr::open(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cntr_attr& attr,
               void* user_context, fid_cntr** out) {
  if (attr.wait_obj != FI_WAIT_NONE && attr.wait_obj != FI_WAIT_UNSPEC)
    throw Error(Errc::not_supported_here, "a counter has no object to wait for; wait with fi_cntr_wait()");
  if (attr.events != FI_CNTR_EVENTS_COMP)
    throw Error(Errc::not_supported_here, "a counter counts operations (FI_CNTR_EVENTS_COMP)");
  *out = new Cntr(core, domain, user_context);
  return 0;
}

Cntr::Cntr(const std::shared_ptr<DomainCore>& core, Users& domain, void* user_context)
    : fid_cntr{}, core_(core), domain_(domain), counter_(core->open_counter()) {
  fid = {.fclass = FI_CLASS_CNTR, .context = user_context, .ops = &CntrCalls::fid_calls};
  ops = &CntrCalls::calls;
}

void Cntr::progress() {
  // One that counts what peers do at a region has no endpoint of its own.
  if (!driven_.progress()) core_->progress();
}

int Cntr::wait(std::uint64_t threshold, int timeout) {
  const Deadline deadline = deadline_of(timeout);
  const std::uint64_t errors = counter_->errors();
  const auto reached = [&] { return counter_->value() >= threshold; };
  counter_->add_waiter();
  struct Leave {
    Counter& counter;
    ~Leave() { counter.remove_waiter(); }
  } const leave{*counter_};
  const bool ended = core_->wait([&] { return reached() || counter_->errors() != errors; }, deadline);
  if (counter_->read() >= threshold) return 0;
  return ended ? -FI_EAVAIL : -FI_ETIMEDOUT;
}

}  // namespace fab::fi
