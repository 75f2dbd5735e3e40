#include "fabric/completion/log_thread.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/process/process.h"
#include "base/process/worker.h"

namespace fab {
namespace {

using Work = std::shared_ptr<Untold>;

struct Teller {
  const std::uint32_t generation = fork_generation();
  Worker<Work> worker{"pyfab-log", [](Work& notes) noexcept { notes->tell(); }};
};
std::atomic<Teller*> teller{nullptr};  // never destroyed

Teller& this_teller() {
  Teller* found = teller.load();
  if (found && found->generation == fork_generation()) return *found;
  auto made = std::make_unique<Teller>();
  if (teller.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;  // another thread was first
}

}  // namespace

bool LogThread::push(std::shared_ptr<Untold> notes) {
  Worker<Work>::Items work{std::move(notes)};
  return this_teller().worker.push(work, true);
}

void LogThread::finish() noexcept {
  Teller* const found = teller.load();
  if (found && found->generation == fork_generation()) found->worker.stop();
}

}  // namespace fab
