#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "mock_verbs/objects.h"

// The thread that is the device: it moves what is on the sockets, and does what queue pairs have to do.
namespace mock {
namespace {

constexpr std::uint64_t kWake = 0;  // in place of an id's number

void greet(Id& listener) {
  for (;;) {
    const int fd = ::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    auto* const id = new Id{};
    id->verbs = listener.verbs;
    id->channel = listener.channel;
    id->context = listener.context;
    id->ps = listener.ps;
    id->port_num = listener.port_num;
    id->route.addr.src_storage = listener.route.addr.src_storage;
    id->state = Id::State::greeting;
    id->listener = &listener;
    id->number = world().next_id++;
    id->fd = fd;
    world().ids[id->number] = id;
    watch(*id);
  }
}

void take_packets(Id& id) {
  std::size_t at = 0;
  Header header;
  while (id.in.size() - at >= sizeof header) {
    std::memcpy(&header, id.in.data() + at, sizeof header);
    if (id.in.size() - at - sizeof header < header.bytes) break;
    const std::string bytes = id.in.substr(at + sizeof header, header.bytes);
    at += sizeof header + header.bytes;
    on_packet(id, header, bytes);
  }
  id.in.erase(0, at);
}

void receive(Id& id) {
  static char bytes[256 * 1024];
  for (int turn = 0; turn < 16; ++turn) {
    const ssize_t got = ::recv(id.fd, bytes, sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {
      take_packets(id);
      return on_end(id);
    }
    id.in.append(bytes, static_cast<std::size_t>(got));
    if (static_cast<std::size_t>(got) < sizeof bytes) break;
  }
  take_packets(id);
}

// Milliseconds until something is due; -1 if nothing is.
int time_left(Clock::time_point now) {
  auto next = Clock::time_point::max();
  if (!world().delayed.empty()) next = world().delayed.front().due;
  for (const auto& [number, id] : world().ids)
    if (const auto until = gives_up(*id)) next = std::min(next, *until);
  for (const auto& [qp, until] : world().last)
    if (until > now) next = std::min(next, until);
  if (next == Clock::time_point::max()) return -1;
  if (next <= now) return 0;
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count()) + 1;
}

void turn(const epoll_event* events, int count) {
  World& all = world();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = events[i].data.u64;  // is packed there
    if (number == kWake) {
      eventfd_t ignored;
      ::eventfd_read(all.wake, &ignored);
      continue;
    }
    const auto found = all.ids.find(number);
    if (found == all.ids.end() || found->second->fd < 0) continue;
    Id& id = *found->second;
    if (id.state == Id::State::listening) {
      greet(id);
      continue;
    }
    if (id.state == Id::State::joining) {
      on_door(id);
      continue;
    }
    receive(id);
    all.busy.insert(&id);
  }
  const auto now = Clock::now();
  for (const auto& [number, id] : all.ids)
    if (const auto until = gives_up(*id); until && *until <= now) all.busy.insert(id);
  while (!all.busy.empty())
    for (Id* const id : std::exchange(all.busy, {})) {
      serve(*id, now);
      if (id->qp) advance(*static_cast<Qp*>(id->qp));
      flush(*id);
    }
  deliver_due(now);
}

void run() {
  World& all = world();
  int patience = -1;
  for (;;) {
    epoll_event events[64];
    const int count = ::epoll_wait(all.poller, events, 64, patience);
    const Lock lock(all.mutex);
    turn(events, std::max(count, 0));
    patience = time_left(Clock::now());
  }
}

}  // namespace

void start_device() {
  World& all = world();
  all.poller = ::epoll_create1(EPOLL_CLOEXEC);
  all.wake = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWake}};
  ::epoll_ctl(all.poller, EPOLL_CTL_ADD, all.wake, &event);
  // Signals are for the threads of the program.
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  std::thread(run).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void watch(Id& id) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id.number}};
  ::epoll_ctl(world().poller, EPOLL_CTL_ADD, id.fd, &event);
}

void unwatch(Id& id) {
  if (id.fd < 0) return;
  if (id.own && id.own->door == id.fd) id.own->door = -1;
  ::epoll_ctl(world().poller, EPOLL_CTL_DEL, id.fd, nullptr);
  ::close(std::exchange(id.fd, -1));
}

void say(Id& id, const Header& header, const void* bytes, std::size_t length) {
  if (id.fd < 0) return;
  id.out.append(reinterpret_cast<const char*>(&header), sizeof header);
  id.out.append(static_cast<const char*>(bytes), length);
  flush(id);
}

void flush(Id& id) {
  if (id.fd < 0 || id.state == Id::State::listening || id.state == Id::State::joining) return;
  while (id.sent < id.out.size()) {
    const ssize_t done =
        ::send(id.fd, id.out.data() + id.sent, id.out.size() - id.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done <= 0) break;
    id.sent += static_cast<std::size_t>(done);
  }
  if (id.sent == id.out.size()) {
    id.out.clear();
    id.sent = 0;
  }
  const bool waits = !id.out.empty();
  if (waits == std::exchange(id.writes, waits)) return;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id.number}};
  if (waits) event.events |= EPOLLOUT;
  ::epoll_ctl(world().poller, EPOLL_CTL_MOD, id.fd, &event);
}

}  // namespace mock
