#include "base/locks/overlap_watch.h"

#include <doctest/doctest.h>

#include <optional>
#include <thread>

using fab::OverlapWatch;

TEST_CASE("WIN-45: a thread that comes while another is inside is counted, one that comes again is not") {
  OverlapWatch section, other;
  const auto visits = [&] { std::thread([&] { const OverlapWatch::Visit visit(section); }).join(); };
  OverlapWatch::start();
  {
    const OverlapWatch::Visit outer(section), inner(section), elsewhere(other);
  }
  visits();
  CHECK(OverlapWatch::stop() == 0);

  OverlapWatch::start();
  {
    const OverlapWatch::Visit outer(section);
    {
      const OverlapWatch::Visit inner(section);
    }
    visits();
    visits();
  }
  visits();
  CHECK(OverlapWatch::stop() == 2);

  std::optional<OverlapWatch::Visit> before(std::in_place, section);  // while nobody watched
  OverlapWatch::start();
  before.reset();
  visits();
  CHECK(OverlapWatch::stop() == 0);
}
