#include "base/network/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/process/process.h"

namespace fab {

Poller::Poller()
    : fork_generation_(fork_generation()),
      epoll_(check_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {}

void Poller::add(int fd, std::uint32_t events, ReadyHandler& handler) {
  epoll_event event{.events = events, .data = {.ptr = &handler}};
  check_call(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl(ADD)");
}

void Poller::modify(int fd, std::uint32_t events, ReadyHandler& handler) noexcept {
  epoll_event event{.events = events, .data = {.ptr = &handler}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd, ReadyHandler& handler) noexcept {
  if (fork_generation_ != fork_generation()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < round_size_; ++i)
    if (round_[i] == &handler) round_[i] = nullptr;
}

bool Poller::sleep(int timeout_ms) const noexcept {
  epoll_event event;
  return ::epoll_wait(epoll_.get(), &event, 1, timeout_ms) > 0;
}

int Poller::dispatch() noexcept {
  epoll_event events[kBatch];
  const int count = ::epoll_wait(epoll_.get(), events, kBatch, 0);
  if (count <= 0) return 0;
  for (int i = 0; i < count; ++i) round_[i] = events[i].data.ptr;
  round_size_ = count;
  // The rounds begin at different handlers, because handlers may share a budget that the first ones use up.
  const auto first = static_cast<int>(rounds_++ % static_cast<unsigned>(count));
  for (int i = 0; i < count; ++i) {
    const int at = (first + i) % count;
    if (round_[at]) static_cast<ReadyHandler*>(round_[at])->on_ready(events[at].events);
  }
  round_size_ = 0;
  return count;
}

Waker::Waker(Poller& poller)
    : poller_(poller), event_(check_call(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  poller_.add(event_.get(), EPOLLIN, *this);
}

Waker::~Waker() { poller_.remove(event_.get(), *this); }

void Waker::wake() noexcept {
  if (raised_.exchange(true, std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

void Waker::on_ready(std::uint32_t) noexcept {
  std::uint64_t count;
  [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  raised_.exchange(false, std::memory_order_seq_cst);
}

}  // namespace fab
