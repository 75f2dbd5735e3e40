#include "fabric/domain/driver.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "fabric/types/error.h"

using namespace fab;
using std::chrono::seconds;

namespace {

// What is driven, without a link. All is used under the driver's lock, except for what is atomic.
class Work final : public Endpoint, public Tidier {
 public:
  bool progress() noexcept override {
    ++advances;
    return on_advance();
  }
  bool arm() noexcept override {
    ++arms;
    return on_arm();
  }
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override { return nullptr; }
  void forget(std::uint32_t) noexcept override {}
  void tidy(bool path_ended) noexcept override { path_ended ? ++tidied_ends : ++tidied_moves; }

  std::function<bool()> on_advance = [] { return false; };
  std::function<bool()> on_arm = [] { return true; };
  std::atomic<int> advances{0}, arms{0}, tidied_moves{0}, tidied_ends{0};
};

// A descriptor of the driver's poller, as a link has one.
class Arrival final : public ReadyHandler {
 public:
  explicit Arrival(Driver& driver) : poller_(driver.poller()), event_(::eventfd(0, EFD_NONBLOCK)) {
    poller_.add(event_.get(), 1 /* EPOLLIN */, *this);
  }
  ~Arrival() override { poller_.remove(event_.get(), *this); }
  void arrive() { REQUIRE(::eventfd_write(event_.get(), 1) == 0); }
  void on_ready(std::uint32_t) noexcept override {
    eventfd_t value;
    if (::eventfd_read(event_.get(), &value) == 0) ++taken;
  }
  std::atomic<int> taken{0};

 private:
  Poller& poller_;
  OwnFd event_;
};

Deadline soon() { return Deadline::in(seconds(20)); }  // no test takes that long unless it fails

void until(const std::function<bool()>& done) {
  const Deadline deadline = soon();
  while (!done() && !deadline.passed()) std::this_thread::yield();
  CHECK(done());
}

// A caller that has gone to sleep as the leader; it waits for flag().
class Sleeper {
 public:
  explicit Sleeper(Driver& driver)
      : driver_(driver),
        thread_([this] { finished_ = driver_.wait([this] { return flag.load(); }, soon()); }) {
    until([this] { return driver_.who() == Driver::Who::staying_caller; });
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    if (thread_.joinable()) join();
  }
  bool join() {
    flag = true;
    driver_.wake();
    thread_.join();
    return finished_;
  }
  std::atomic<bool> flag{false};

 private:
  Driver& driver_;
  std::atomic<bool> finished_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a turn begins a slice, and so does each pause in it") {
  Work work;
  Driver driver(work);
  driver.open(work);
  {
    Driver::Turn turn(driver);
    driver.slice().spend(Slice::kBytes);
    CHECK(driver.slice().spent());
    turn.pause(std::chrono::nanoseconds(1));
    std::thread([&] { CHECK(!Driver::Turn(driver, std::try_to_lock)); }).join();  // the lock is back
    CHECK(driver.slice().used() == 0);
    driver.slice().spend(Slice::kBytes);
    turn.move();
    CHECK(driver.slice().used() == 0);
    driver.slice().spend(Slice::kBytes);
  }
  const Driver::Turn next(driver);
  CHECK(driver.slice().used() == 0);
}

TEST_CASE("each way to drive begins a slice") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::uint64_t used = 0;
  work.on_advance = [&] {
    used += driver.slice().used();
    driver.slice().spend(Slice::kBytes);
    return false;
  };
  work.on_arm = [&] {
    used += driver.slice().used();
    driver.slice().spend(Slice::kBytes);
    return true;
  };
  driver.progress();
  driver.progress(false);
  driver.turn();
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(work.advances == 3);
  CHECK(work.arms == 1);
  CHECK(used == 0);
}

TEST_CASE("the poller's turn of a leader begins a slice as well") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  arrival.arrive();
  work.on_advance = [&] {
    driver.slice().spend(Slice::kBytes);
    return false;
  };
  std::uint64_t used = 1;
  CHECK(driver.wait(
      [&] {
        if (arrival.taken == 0) return false;
        used = driver.slice().used();
        return true;
      },
      soon()));
  CHECK(used == 0);
}

TEST_CASE("the lock is had without waiting or not at all, and nobody moves anything while it is held") {
  Work work;
  Driver driver(work);
  driver.open(work);
  const Driver::Turn turn(driver);
  CHECK(turn);
  std::thread([&] {
    const Driver::Turn other(driver, std::try_to_lock);
    CHECK(!other);
    CHECK(!driver.progress());
    CHECK(driver.arm() == Driver::Rest::in_use);
  }).join();
  CHECK(work.advances == 0);
  CHECK(work.arms == 0);
}

TEST_CASE("what moved is tidied, and a path that ended is so at the end of the turn, once") {
  Work work;
  Driver driver(work);
  driver.open(work);
  CHECK(!driver.progress());
  CHECK(work.tidied_moves == 0);
  work.on_advance = [] { return true; };
  CHECK(driver.progress());
  CHECK(work.tidied_moves == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(work.tidied_ends == 0);
  {
    const Driver::Turn turn(driver);
    driver.path_ended() = true;
    CHECK(work.tidied_ends == 0);
  }
  CHECK(work.tidied_ends == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(work.tidied_ends == 1);
  work.on_advance = [&] {
    driver.path_ended() = true;
    return false;
  };
  driver.progress();
  CHECK(work.tidied_ends == 2);
}

TEST_CASE("a notice is given once, after unlocking, by whoever was at it") {
  Work work;
  Driver driver(work);
  driver.open(work);
  int notices = 0;
  driver.on_notice = [&] {
    ++notices;
    const Driver::Turn free(driver, std::try_to_lock);
    CHECK(free);
  };
  const auto request = [&] { driver.request_notice(); };
  {
    const Driver::Turn turn(driver);
    request();
    CHECK(notices == 0);
  }
  CHECK(notices == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(notices == 1);
  Driver::Lock lock = driver.lock();
  request();
  driver.unlock(lock);
  CHECK(notices == 2);
  CHECK_THROWS_AS(
      [&] {
        const Driver::Turn turn(driver);
        request();
        throw std::runtime_error("in the middle");
      }(),
      std::runtime_error);
  CHECK(notices == 3);
  work.on_advance = [&] {
    request();
    return false;
  };
  driver.turn();
  CHECK(notices == 4);
  driver.progress();
  CHECK(notices == 5);
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(notices == 6);
}

TEST_CASE("a leader stops for a notice, which may wait itself, and goes on afterwards") {
  Work work;
  Driver driver(work);
  driver.open(work);
  bool inner = false, outer = false;
  int asked = 0;
  driver.on_notice = [&] {
    inner = driver.wait([] { return true; }, soon());
    CHECK(driver.who() == Driver::Who::spinning_caller);  // somebody came and went
    CHECK(driver.who() == Driver::Who::nobody);           // and the leader counts as gone
    outer = true;
  };
  work.on_advance = [&] {
    if (asked++ == 0) driver.request_notice();
    return true;
  };
  CHECK(driver.wait([&] { return outer; }, soon()));
  CHECK(inner);
}

TEST_CASE("the first caller leads, the others follow, and each hears when something moved") {
  Work work;
  Driver driver(work);
  driver.open(work);
  constexpr int kCallers = 4;
  std::atomic<int> ready{0}, leading{0}, finished{0};
  std::atomic<bool> go{false}, overlap{false};
  work.on_advance = [&] {
    if (++leading != 1) overlap = true;
    const bool moved = go.load();
    --leading;
    return moved;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i)
    threads.emplace_back([&] {
      bool counted = false;
      const bool done = driver.wait(
          [&] {
            if (!std::exchange(counted, true)) ++ready;
            return go.load();
          },
          soon());
      finished += done;
    });
  until([&] { return ready == kCallers; });
  go = true;
  driver.wake();
  for (std::thread& thread : threads) thread.join();
  CHECK(finished == kCallers);
  CHECK(!overlap);
}

TEST_CASE("a follower leads when the leader has what it waited for") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> followed{0};
  std::atomic<std::thread::id> leader;
  work.on_advance = [&] {
    leader = std::this_thread::get_id();
    return false;
  };
  Sleeper first(driver);
  const std::thread::id before = leader;
  std::atomic<bool> done{false};
  std::thread second([&] {
    CHECK(driver.wait(
        [&] {
          ++followed;
          return done.load();
        },
        soon()));
  });
  until([&] { return followed > 0; });
  CHECK(first.join());
  until([&] { return leader.load() != before && leader.load() == second.get_id(); });
  done = true;
  driver.wake();
  second.join();
}

TEST_CASE("nobody sleeps while there is work") {
  Work work;
  Driver driver(work);
  driver.open(work);
  int left = 3;
  work.on_arm = [&] { return left-- == 0; };
  // Each refusal to sleep is followed by another round of the leader, which looks again.
  CHECK(driver.wait([&] { return left <= 0; }, Deadline()));
  CHECK(work.arms == 3);
}

TEST_CASE("a leader sleeps until it is woken: by a descriptor, a wake(), or a turn that settles something") {
  for (const int how : {0, 1, 2}) {
    CAPTURE(how);
    Work work;
    Driver driver(work);
    driver.open(work);
    Arrival arrival(driver);
    Sleeper sleeper(driver);
    until([&] { return work.arms > 0; });
    if (how == 0) {
      arrival.arrive();
      until([&] { return arrival.taken == 1; });
    } else if (how == 1) {
      const int moves = work.advances;
      driver.wake();
      until([&] { return work.advances > moves; });
    } else {
      const int moves = work.advances;
      {
        const Driver::Turn turn(driver);
      }
      until([&] { return work.advances > moves; });
    }
    CHECK(sleeper.join());
  }
}

TEST_CASE("a caller without patience makes one turn, and none beside a leader") {
  Work work;
  Driver driver(work);
  driver.open(work);
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(work.advances == 1);
  CHECK(driver.wait([] { return true; }, Deadline::in(seconds(0))));
  CHECK(work.advances == 1);
  Sleeper sleeper(driver);
  const int moves = work.advances;
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(work.advances == moves);
  CHECK(sleeper.join());
}

TEST_CASE("a turn is one turn; beside a leader it waits until that one moved something") {
  Work work;
  Driver driver(work);
  driver.open(work);
  driver.turn();
  CHECK(work.advances == 1);
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
  std::atomic<int> turned{0};
  Sleeper sleeper(driver);
  std::thread other([&] {
    driver.turn();
    ++turned;
  });
  CHECK(!driver.progress());  // somebody leads
  CHECK(sleeper.join());
  other.join();
  CHECK(turned == 1);
}

TEST_CASE("nothing is driven and nobody waits once the driver is closed") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Sleeper sleeper(driver);
  std::atomic<int> followed{0};
  std::thread follower([&] {
    CHECK(!driver.wait(
        [&] {
          ++followed;
          return false;
        },
        soon()));
  });
  until([&] { return followed > 0; });
  {
    const Driver::Turn turn(driver);
    driver.close();
  }
  follower.join();
  sleeper.join();
  const int moves = work.advances, arms = work.arms;
  while (driver.progress()) {  // takes what has woken the leader
  }
  driver.turn();
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(!driver.wait([] { return false; }, soon()));
  CHECK(work.advances == moves);
  CHECK(work.arms == arms);
}

TEST_CASE("the progress thread sees who drives, and is told when a caller that stayed stops") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> woken{0};
  driver.set_wake_thread([&] { ++woken; });
  CHECK(driver.who() == Driver::Who::nobody);
  CHECK(driver.wait([] { return true; }, soon()));
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
  CHECK(woken == 0);
  {
    Sleeper sleeper(driver);
    CHECK(driver.who() == Driver::Who::staying_caller);
    CHECK(driver.arm() == Driver::Rest::in_use);
    CHECK(sleeper.join());
  }
  CHECK(woken >= 1);
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
}

TEST_CASE("a leader that is busy for long says so, without sleeping") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> woken{0};
  driver.set_wake_thread([&] { ++woken; });
  work.on_advance = [] { return true; };  // it never has a reason to sleep
  bool stayed = false;
  CHECK(driver.wait([&] { return stayed |= driver.who() == Driver::Who::staying_caller; }, soon()));
  CHECK(work.arms == 0);
  CHECK(woken == 1);
}

TEST_CASE("whoever takes what would have woken the progress thread wakes it, once") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  int woken = 0;
  driver.set_wake_thread([&] { ++woken; });
  const auto arm = [&] {
    CHECK(driver.arm() == Driver::Rest::allowed);
    CHECK(driver.armed());
  };
  arm();
  CHECK(!driver.progress());
  CHECK(woken == 0);
  work.on_advance = [] { return true; };  // by a link
  CHECK(driver.progress());
  CHECK(!driver.armed());
  CHECK(woken == 1);
  CHECK(driver.progress());
  CHECK(woken == 1);
  work.on_advance = [] { return false; };  // by the poller
  arm();
  arrival.arrive();
  CHECK(driver.progress());
  CHECK(woken == 2);
  arm();
  driver.who();  // the thread is awake
  CHECK(!driver.armed());
  work.on_advance = [] { return true; };
  CHECK(driver.progress());
  CHECK(woken == 2);
}

TEST_CASE("without a progress thread, what was taken is armed again") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_advance = [] { return true; };
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(work.arms == 1);
  CHECK(driver.progress());
  CHECK(work.arms == 2);
  CHECK(driver.progress());
  CHECK(work.arms == 2);
}

TEST_CASE("the thread does not sleep where there is work") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_arm = [] { return false; };
  CHECK(driver.arm() == Driver::Rest::work_left);
  CHECK(!driver.armed());
}

TEST_CASE("however much moves, the poller has its turns; who need not look leaves it alone otherwise") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  arrival.arrive();
  CHECK(!driver.progress(false));
  CHECK(arrival.taken == 0);
  work.on_advance = [] { return true; };
  int turns = 0;
  while (arrival.taken == 0 && turns < 100000) {
    CHECK(driver.progress(false));
    ++turns;
  }
  CHECK(arrival.taken == 1);
  CHECK(turns > 100);
  CHECK(turns < 200);
}

TEST_CASE("others who want the lock get it while a leader polls") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_advance = [] { return true; };  // the leader never sleeps
  std::atomic<bool> inside{false};
  std::thread other([&] {
    until([&] { return work.advances > 0; });
    const Driver::Turn turn(driver);
    inside = true;
  });
  CHECK(driver.wait([&] { return inside.load(); }, soon()));
  other.join();
}

TEST_CASE("what a fork inherited is refused, and its progress is nobody's business") {
  Work work;
  Driver driver(work);
  driver.open(work);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [](const auto& call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == Errc::closed;
      }
      return false;
    };
    const bool right = driver.inherited() && refused([&] { driver.progress(); }) &&
                       refused([&] { driver.turn(); }) &&
                       refused([&] { driver.wait([] { return true; }, {}); }) &&
                       driver.arm() == Driver::Rest::allowed && !driver.armed() && work.arms == 0;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(!driver.inherited());
}

TEST_CASE("a turn wakes those who follow: what settled in place may be what one waits for") {
  Work work;
  Driver driver(work);
  driver.open(work);
  // The leader is held inside its turn, so that only the other turn can have woken the follower.
  Sleeper leader(driver);
  std::atomic<int> asked{0};
  std::atomic<bool> done{false};
  std::thread follower([&] {
    CHECK(driver.wait(
        [&] {
          ++asked;
          return done.load();
        },
        soon()));
  });
  until([&] { return asked > 0; });
  done = true;
  {
    const Driver::Turn turn(driver);
  }
  follower.join();
  CHECK(leader.join());
}

TEST_CASE("turns that make a slice give way to those who want the lock; shorter ones follow each other") {
  Work work;
  Driver driver(work);
  driver.open(work);
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    std::atomic<bool> waits{false}, had{false};
    std::thread other;
    int turns = 0;
    {
      const Driver::Turn first(driver);
      other = std::thread([&] {
        waits = true;
        const Driver::Turn turn(driver);
        had = true;
      });
      until([&] { return waits.load(); });
    }
    while (!had && turns < 1000000) {
      const Driver::Turn turn(driver);
      driver.slice().spend(whole ? Slice::kBytes : 1);
      ++turns;
    }
    other.join();
    CHECK(had);
  }
}
