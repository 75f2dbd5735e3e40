#include "providers/verbs/connection/destroyed_later.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>

namespace {

using fab::verbs::DestroyedLater;
using fab::verbs::DestroyedLaterList;

struct Counted final : DestroyedLater {
  explicit Counted(int& alive_now, DestroyedLaterList* then_to = nullptr) : alive(alive_now), to(then_to) {
    ++alive;
  }
  ~Counted() override {
    --alive;
    if (to) to->add(std::make_shared<Counted>(alive));
  }
  int& alive;
  DestroyedLaterList* to;
};

}  // namespace

TEST_CASE("what is to be destroyed lives until then, or longer where somebody else holds it") {
  int alive = 0;
  DestroyedLaterList list;
  CHECK(list.empty());
  list.add(nullptr);
  CHECK(list.empty());
  auto held = std::make_shared<Counted>(alive);
  list.add(std::make_shared<Counted>(alive));
  list.add(held);
  list.add(std::make_shared<Counted>(alive));
  CHECK_FALSE(list.empty());
  CHECK(alive == 3);
  list.destroy();
  CHECK(list.empty());
  CHECK(alive == 1);
  CHECK(held->next == nullptr);
  held.reset();
  CHECK(alive == 0);
}

TEST_CASE(
    "what a destructor adds goes with the rest, or with the next turn's where these were taken before") {
  int alive = 0;
  DestroyedLaterList list;
  list.add(std::make_shared<Counted>(alive, &list));
  list.destroy();
  CHECK(alive == 0);

  list.add(std::make_shared<Counted>(alive, &list));
  DestroyedLaterList taken = std::move(list);
  CHECK(list.empty());
  taken.destroy();
  CHECK(alive == 1);
  CHECK_FALSE(list.empty());
  list.destroy();
  CHECK(alive == 0);
}

TEST_CASE("a million objects are destroyed without a million calls in each other") {
  int alive = 0;
  for (const bool by_end : {false, true}) {
    DestroyedLaterList list;
    for (int i = 0; i < 1'000'000; ++i) list.add(std::make_shared<Counted>(alive));
    CHECK(alive == 1'000'000);
    if (by_end) {
      const DestroyedLaterList ends = std::move(list);
    } else {
      list.destroy();
    }
    CHECK(alive == 0);
  }
}
