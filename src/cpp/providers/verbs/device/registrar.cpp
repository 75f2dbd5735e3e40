#include "providers/verbs/device/registrar.h"

#include <exception>

namespace fab::verbs {

void Loan::make() noexcept try {
  lease_ = lend_();
  over_.store(true, std::memory_order_release);
} catch (const std::exception&) {
  over_.store(true, std::memory_order_release);  // the lease holds nothing
}

void Registrar::push(Worker<Work>& worker, std::function<bool()> step) {
  Worker<Work>::Items items;
  items.push_back({this, &worker, std::move(step)});
  worker.push(items, true);
}

std::shared_ptr<Loan> Registrar::lend(Loan::Lend lend, std::function<void()> over) {
  auto loan = std::make_shared<Loan>(std::move(lend));
  push(transfers_, [loan, over = std::move(over)] {
    if (loan.use_count() == 1) return false;
    loan->make();
    over();
    return false;
  });
  return loan;
}

void Registrar::give_back(RegistrationCache::Lease lease) noexcept try {
  push(transfers_, [given = std::make_shared<RegistrationCache::Lease>(std::move(lease))] {
    *given = {};
    return false;
  });
} catch (const std::exception&) {
  return;  // it has ended here
}

void Registrar::handle(Work& work) noexcept {
  // The rest goes behind what waits; without memory for that it goes on at once.
  while (!work.registrar->stopped_.load(std::memory_order_relaxed) && work.step()) try {
      return work.registrar->push(*work.worker, work.step);
    } catch (const std::exception&) {
      continue;
    }
}

void Registrar::stop() noexcept {
  stopped_.store(true, std::memory_order_relaxed);
  regions_.stop();
  transfers_.stop();
}

}  // namespace fab::verbs
