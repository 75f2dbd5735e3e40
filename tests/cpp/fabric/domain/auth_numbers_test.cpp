#include "fabric/domain/auth_numbers.h"

#include <doctest/doctest.h>

#include "fabric/segment/region_table.h"
#include "fabric/types/error.h"

using namespace fab;

namespace {

using Keys = std::vector<std::string>;

bool refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == Errc::invalid;
  }
  return false;
}

}  // namespace

TEST_CASE("keys are numbered as they come, and the domain's is number 0") {
  AuthNumbers numbers("own");
  CHECK(numbers.of("") == 0);
  CHECK(numbers.of("own") == 0);
  CHECK(numbers.of("first") == 1);
  CHECK(numbers.of("second") == 2);
  CHECK(numbers.of("first") == 1);
  const Keys both{"first", "second"};
  CHECK(numbers.of_any({}) == 0);
  CHECK(numbers.of_any(both) == (kAuthSet | 1u << 1 | 1u << 2));
}

TEST_CASE("a key that takes another one's place has its number") {
  AuthNumbers numbers("own");
  REQUIRE(numbers.of("first") == 1);
  const auto added = numbers.add("next", "");
  CHECK(added.number == 0);
  CHECK(added.is_new);
  CHECK_FALSE(numbers.add("next", "own").is_new);  // once more
  CHECK(numbers.add("later", "first").number == 1);
  CHECK(numbers.of("next") == 0);
  CHECK(numbers.of("later") == 1);
  CHECK(numbers.number_of_known("later") == 1);
  CHECK(numbers.keys(0) == Keys{"own", "next"});
  CHECK(numbers.keys(1) == Keys{"first", "later"});

  numbers.set(0, {"next"});
  CHECK(numbers.keys(0) == Keys{"next"});
  numbers.take_back(1);
  CHECK(numbers.keys(1) == Keys{"first"});
  CHECK(numbers.of("own") == 2);  // as any other
  CHECK(numbers.of("later") == 3);
}

TEST_CASE("what cannot be changed is told, and nothing changes") {
  AuthNumbers numbers("own");
  REQUIRE(numbers.of("first") == 1);
  REQUIRE(numbers.add("next", "").is_new);
  CHECK(refused([&] { numbers.add("first", ""); }));  // has another number
  CHECK(refused([&] { numbers.add("third", "unknown"); }));
  CHECK(refused([&] { numbers.add("", ""); }));
  CHECK(refused([&] { numbers.number_of_known("unknown"); }));
  CHECK(refused([&] { numbers.number_of_known(""); }));
  CHECK(numbers.keys(0) == Keys{"own", "next"});
  CHECK(numbers.keys(1) == Keys{"first"});

  AuthNumbers open("");
  CHECK(refused([&] { open.add("next", ""); }));
  CHECK(open.of("next") == 1);
}
