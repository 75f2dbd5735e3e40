#include "fabric/admission/pace.h"

#include <doctest/doctest.h>

using namespace fab;
using std::chrono::seconds;

namespace {

constexpr seconds kStretch(5);

struct Watched {
  bool look(int second, std::uint64_t bytes, bool works = true) {
    pace.look(works, bytes, seconds(second), kStretch);
    return pace.stalled();
  }
  Pace pace;
};

}  // namespace

TEST_CASE("a byte now and then is not the least pace") {
  Watched peer;
  for (int second = 100; second < 105; ++second)
    CHECK_FALSE(peer.look(second, static_cast<unsigned>(second)));
  CHECK(peer.look(105, 105));
  CHECK(peer.look(109, 1 << 20));  // is judged with the next stretch
  CHECK_FALSE(peer.look(110, 1 << 20));
  CHECK(peer.look(115, (1 << 20) + 5 * Pace::kLeast - 1));
  CHECK_FALSE(peer.look(120, (1 << 20) + 10 * Pace::kLeast - 1));
}

TEST_CASE("the time in which nothing was under way counts for nothing") {
  Watched peer;
  CHECK_FALSE(peer.look(0, 0, false));
  CHECK_FALSE(peer.look(100, 0));
  CHECK_FALSE(peer.look(104, 0));
  CHECK(peer.look(105, 0));
  CHECK_FALSE(peer.look(106, 0, false));
  CHECK_FALSE(peer.look(107, 0));
  CHECK_FALSE(peer.look(111, 0));
  CHECK(peer.look(112, 0));
}
