// Numbers of threads (base/process/thread_slot.h), while threads begin and end.

#include "base/process/thread_slot.cpp"  // to see which numbers are in use

#include <doctest/doctest.h>

#include <array>

#include "model/model.h"

using fab::kThreadSlots;
using fab::thread_slot;
using model::Kind;

namespace {

// What the numbers name, as counters of the registration cache are: one writer each, without locked
// instructions, and a last one for all who have no number.
std::array<std::uint64_t, kThreadSlots> counts;
std::atomic<std::uint64_t> others{0};

void count() {
  const unsigned number = thread_slot();
  model::check(number == thread_slot(), "a thread has two numbers");
  if (number < kThreadSlots)
    ++counts[number];
  else
    others.fetch_add(1, std::memory_order_relaxed);
}

// Counts once more when the thread ends.
struct CountsAtEnd {
  ~CountsAtEnd() { count(); }
};

// This object goes after the number if it is made before it.
void count_after_the_number() {
  thread_local const CountsAtEnd last;
  count();
}

void count_before_the_number_goes() {
  count();
  thread_local const CountsAtEnd last;
  count();
}

constexpr std::uint64_t kCounts = 8;  // of three threads

model::Scenario scenario(unsigned free) {
  return {.setup =
              [free] {
                fab::used = ~std::uint64_t{0} << free;
                counts = {};
                others = 0;
                model::watch(&counts, sizeof counts);
                model::name(fab::used, "used");
                model::name(counts, "counts");
                model::name(others, "others");
              },
          .threads = {count_after_the_number, count_before_the_number_goes, count_before_the_number_goes},
          .finish =
              [free] {
                std::uint64_t sum = others;
                for (const std::uint64_t number : counts) sum += number;
                model::check(sum == kCounts, "a count is lost");
                model::check(fab::used == ~std::uint64_t{0} << free, "a number is not given back");
              },
          .ends = true};
}

}  // namespace

TEST_CASE("threads that live have numbers of their own") {
  model::holds("thread slots, one free", scenario(1), {.preemptions = 2});
  model::holds("thread slots, two free", scenario(2), {.preemptions = 2});
  model::holds("thread slots, enough", scenario(3), {.preemptions = 2});
}

TEST_CASE("the orders of thread slots are needed") {
  const auto weaker = [](std::optional<unsigned> thread) {
    return model::Weaker{Kind::update, std::memory_order_relaxed, &fab::used, sizeof fab::used, thread};
  };
  model::fails("a number is taken and given back", scenario(1), {weaker({})}, "data race: counts");
  auto taken = weaker({}), given = weaker({});
  taken.order = std::memory_order_release;
  given.order = std::memory_order_acquire;
  model::fails("a number is taken", scenario(1), {taken}, "data race: counts");
  model::fails("a number is given back", scenario(1), {given}, "data race: counts");
}
