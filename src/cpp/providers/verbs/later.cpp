#include "providers/verbs/later.h"

#include <sys/eventfd.h>

#include <utility>

namespace fab::verbs {
namespace {

constexpr double kPeriod = 0.01;  // seconds

}  // namespace

Later::Later(Poller& poller, std::function<void()> turn_links)
    : turn_links_(std::move(turn_links)),
      ticker_(poller, [this] { tick(); }),
      thread_(std::make_shared<OwnFd>(check_call(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd"))),
      on_thread_(poller, thread_->get(), [this] { on_thread(); }) {}

void Later::redial(VerbsStream& stream) noexcept {
  redials_.push_back(stream);
  ticker_.start(kPeriod);
}

void Later::links() noexcept {
  links_ = true;
  ticker_.start(kPeriod);
}

std::function<void()> Later::links_by_thread() const {
  return [thread = thread_] { ::eventfd_write(thread->get(), 1); };
}

void Later::on_thread() noexcept {
  eventfd_t told;
  ::eventfd_read(thread_->get(), &told);
  turn_links_();
}

void Later::tick() noexcept {
  if (std::exchange(links_, false)) turn_links_();
  LinkedList<VerbsStream, StreamRedials> before;
  before.take(redials_);
  while (!before.empty()) {
    VerbsStream& stream = before.pop_front();
    if (stream.redial_due())
      stream.redial();
    else
      redials_.push_back(stream);
  }
  if (redials_.empty() && !links_) ticker_.stop();
}

}  // namespace fab::verbs
