#include "base/queues/linked_list.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

namespace fab {
namespace {

struct Waiting;
struct Item : Linked<Waiting> {
  explicit Item(int number_) : number(number_) {}
  int number;
};
using Items = LinkedList<Item, Waiting>;

std::vector<int> numbers(Items& items) {
  std::vector<int> found;
  while (!items.empty()) found.push_back(items.pop_front().number);
  return found;
}

TEST_CASE("what is in a list is in it once, and in no other one") {
  Item a(1), b(2);
  Items items, others;
  CHECK(items.push_back(a));
  CHECK(items.push_back(b));
  CHECK_FALSE(items.push_back(a));
  CHECK_FALSE(others.push_back(b));
  CHECK(others.empty());
  CHECK(numbers(items) == std::vector{1, 2});
  CHECK(others.push_back(b));
}

TEST_CASE("what ends leaves its list, and a list that ends lets go of what is in it") {
  Item a(1), c(3);
  auto b = std::make_unique<Item>(2);
  Items items;
  {
    Items brief;
    brief.push_back(c);
  }
  for (Item* item : {&a, b.get(), &c}) CHECK(items.push_back(*item));
  b.reset();
  CHECK(numbers(items) == std::vector{1, 3});
  Items::erase(a);  // no effect on what is in none
  items.push_back(a);
  Items::erase(a);
  CHECK(items.empty());
}

TEST_CASE("a list shows what is in it, some of which may leave meanwhile") {
  Item a(1), b(2), c(3);
  Items items;
  CHECK(items.begin() == items.end());
  for (Item* item : {&a, &b, &c}) items.push_back(*item);
  std::vector<int> found;
  for (auto at = items.begin(); at != items.end();) {
    Item& item = *at;
    ++at;
    found.push_back(item.number);
    if (item.number == 2) Items::erase(item);
  }
  CHECK(found == std::vector{1, 2, 3});
  CHECK(numbers(items) == std::vector{1, 3});
}

TEST_CASE("a list takes all of another one, behind its own") {
  Item a(1), b(2), c(3);
  Items items, others;
  items.push_back(a);
  others.push_back(b);
  others.push_back(c);
  items.take(others);
  CHECK(others.empty());
  CHECK(numbers(items) == std::vector{1, 2, 3});
}

}  // namespace
}  // namespace fab
