#include "providers/verbs/connection/work_owners.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "providers/verbs/connection/owner.h"

namespace {

using namespace fab;
using verbs::ConnectionOwner;
using verbs::WorkOwners;

struct Silent final : ConnectionOwner {
  void on_connected() noexcept override {}
  void on_closed(Errc) noexcept override {}
  void on_completion(const ibv_wc&) noexcept override {}
};

}  // namespace

TEST_CASE("an owner is found by its number until it is gone, also where it was the last one looked up") {
  WorkOwners owners;
  Silent first, second;
  const std::uint32_t a = owners.add(first), b = owners.add(second);
  CHECK(a != 0);
  CHECK(b != 0);
  CHECK(a != b);
  CHECK(owners.find(0) == nullptr);
  CHECK(owners.find(a) == &first);
  CHECK(owners.find(b) == &second);
  CHECK(owners.find(b + 1) == nullptr);
  CHECK(owners.find(b) == &second);
  owners.remove(b);
  CHECK(owners.find(b) == nullptr);
  CHECK(owners.find(a) == &first);
}

TEST_CASE("numbers that come around pass over 0, which nobody has") {
  WorkOwners owners(0xFFFFFFFE);
  Silent old, last, next;
  CHECK(owners.add(old) == 0xFFFFFFFE);
  CHECK(owners.add(last) == 0xFFFFFFFF);
  CHECK(owners.add(next) == 1);
  CHECK(owners.find(0xFFFFFFFF) == &last);
}

TEST_CASE("owners that come and go at random are found as in a map") {
  std::mt19937 random(3);
  std::vector<Silent> silent(16);
  WorkOwners owners(0xFFFFFF00);
  std::unordered_map<std::uint32_t, ConnectionOwner*> model;
  std::vector<std::uint32_t> numbers{0};
  for (int round = 0; round < 20'000; ++round) {
    const std::uint32_t some = numbers[random() % numbers.size()];
    if (random() % 4 == 0) {
      ConnectionOwner& owner = silent[random() % silent.size()];
      const std::uint32_t number = owners.add(owner);
      REQUIRE(model.emplace(number, &owner).second);
      numbers.push_back(number);
    } else if (random() % 4 == 0) {
      owners.remove(some);
      model.erase(some);
    } else {
      const auto found = model.find(some);
      REQUIRE(owners.find(some) == (found == model.end() ? nullptr : found->second));
    }
  }
}
