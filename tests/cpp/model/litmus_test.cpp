// What the model itself can show, and what it cannot: small programs whose outcomes are known.

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <thread>

#include "model/model.h"

using enum std::memory_order;

namespace {

std::atomic<int> x{0}, y{0};
int a, b, c, d;  // what was read
int data = 0;    // a plain object

using Outcomes = std::set<std::string>;

std::string text(std::initializer_list<int> values) {
  std::string all;
  for (const int value : values) all += std::to_string(value);
  return all;
}

// The values of a, b, c and d after each execution of the threads.
Outcomes outcomes(std::vector<std::function<void()>> threads) {
  Outcomes seen;
  const model::Scenario scenario{.setup =
                                     [] {
                                       x = y = a = b = c = d = data = 0;
                                       model::watch(&data, sizeof data);
                                     },
                                 .threads = std::move(threads),
                                 .finish = [&] { seen.insert(text({a, b, c, d})); }};
  const model::Result result = model::explore(scenario, {.preemptions = 100});
  CHECK(result.exhaustive);
  CHECK(result.finding == "");
  return seen;
}

std::string finding(std::vector<std::function<void()>> threads) {
  return model::explore({.setup =
                             [] {
                               x = y = a = b = c = d = data = 0;
                               model::watch(&data, sizeof data);
                             },
                         .threads = std::move(threads),
                         .finish = {}},
                        {.preemptions = 100})
      .finding;
}

}  // namespace

TEST_CASE("store buffering: only sequentially consistent operations and fences forbid it") {
  const auto run = [](std::memory_order store, std::memory_order load, bool fence) {
    return outcomes({[=] {
                       x.store(1, store);
                       if (fence) std::atomic_thread_fence(seq_cst);
                       a = y.load(load);
                     },
                     [=] {
                       y.store(1, store);
                       if (fence) std::atomic_thread_fence(seq_cst);
                       b = x.load(load);
                     }});
  };
  const Outcomes strong{"0100", "1000", "1100"};
  Outcomes weak = strong;
  weak.insert("0000");
  CHECK(run(seq_cst, seq_cst, false) == strong);
  CHECK(run(relaxed, relaxed, true) == strong);
  CHECK(run(release, acquire, false) == weak);
  CHECK(run(seq_cst, acquire, false) == weak);
  CHECK(run(release, seq_cst, false) == weak);
}

TEST_CASE("message passing: a release store, or a fence, and what reads it") {
  const auto run = [](std::memory_order store, std::memory_order load, bool fences) {
    return outcomes({[=] {
                       x.store(1, relaxed);
                       if (fences) std::atomic_thread_fence(release);
                       y.store(1, store);
                     },
                     [=] {
                       a = y.load(load);
                       if (fences) std::atomic_thread_fence(acquire);
                       b = x.load(relaxed);
                     }});
  };
  const Outcomes strong{"0000", "0100", "1100"};
  Outcomes weak = strong;
  weak.insert("1000");
  CHECK(run(release, acquire, false) == strong);
  CHECK(run(relaxed, relaxed, true) == strong);
  CHECK(run(relaxed, acquire, false) == weak);
  CHECK(run(release, relaxed, false) == weak);
}

TEST_CASE("a release sequence goes on through updates, and not through stores") {
  const auto run = [](bool updates) {
    return outcomes({[] {
                       x.store(1, relaxed);
                       y.store(1, release);
                     },
                     [=] {
                       if (updates)
                         y.fetch_add(2, relaxed);
                       else if (y.load(relaxed) == 1)
                         y.store(3, relaxed);
                     },
                     [] {
                       a = y.load(acquire);
                       if (a == 3) b = 1 + x.load(relaxed);
                     }});
  };
  CHECK(run(true).count("3100") == 0);
  CHECK(run(true).count("3200") == 1);
  CHECK(run(false).count("3100") == 1);
}

TEST_CASE("coherence: a thread reads no older store than it has read") {
  const Outcomes seen = outcomes({[] {
                                    x.store(1, relaxed);
                                    x.store(2, relaxed);
                                  },
                                  [] {
                                    a = x.load(relaxed);
                                    b = x.load(relaxed);
                                  }});
  CHECK(seen == Outcomes{"0000", "0100", "0200", "1100", "1200", "2200"});
}

TEST_CASE("independent reads of independent writes: one order if all is sequentially consistent") {
  const auto run = [](std::memory_order load) {
    return outcomes({[] { x.store(1, seq_cst); }, [] { y.store(1, seq_cst); },
                     [=] {
                       a = x.load(load);
                       b = y.load(load);
                     },
                     [=] {
                       c = y.load(load);
                       d = x.load(load);
                     }});
  };
  CHECK(run(seq_cst).count("1010") == 0);
  CHECK(run(acquire).count("1010") == 1);
}

TEST_CASE("load buffering is not modelled") {
  const Outcomes seen = outcomes({[] {
                                    a = x.load(relaxed);
                                    y.store(1, relaxed);
                                  },
                                  [] {
                                    b = y.load(relaxed);
                                    x.store(1, relaxed);
                                  }});
  CHECK(seen == Outcomes{"0000", "0100", "1000"});  // and C++ allows 1100
}

TEST_CASE("updates are one after the other, and comparisons fail for what is stored") {
  const Outcomes seen = outcomes({[] { a = x.fetch_add(1, relaxed); },
                                  [] {
                                    int expected = 0;
                                    b = x.compare_exchange_strong(expected, 5, relaxed);
                                    c = expected;
                                  }});
  CHECK(seen == Outcomes{"0010", "5100"});
}

TEST_CASE("plain accesses without an order are data races") {
  const auto writer = [](std::memory_order order) {
    return [=] {
      data = 1;
      x.store(1, order);
    };
  };
  const auto reader = [](std::memory_order order) {
    return [=] {
      if (x.load(order) == 1) a = data;
    };
  };
  CHECK(finding({writer(release), reader(acquire)}) == "");
  CHECK(finding({writer(relaxed), reader(acquire)}).find("data race") == 0);
  CHECK(finding({writer(release), reader(relaxed)}).find("data race") == 0);
  CHECK(finding({[] { data = 1; }, [] { data = 2; }}).find("data race") == 0);
}

TEST_CASE("who waits for nothing is found, and who waits for something is not") {
  CHECK(finding({[] {
                   while (x.load(relaxed) == 0) std::this_thread::yield();
                 },
                 [] { x.store(1, relaxed); }}) == "");
  CHECK(finding({[] {
          while (x.load(relaxed) == 0) std::this_thread::yield();
        }}) == "threads look again and again in vain");
  CHECK(finding({[] {
          while (x.load(relaxed) == 0) {
          }
        }}) == "the execution does not end");
}
