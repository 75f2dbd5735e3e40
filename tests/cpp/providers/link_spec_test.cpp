#include "providers/link_spec.h"

#include <doctest/doctest.h>

#include "fabric/types/error.h"

namespace fab {
namespace {

TEST_CASE("links parse into providers, devices and alternatives") {
  CHECK(parse_links("shm") == std::vector<Link>{{{"shm", {}}}});
  CHECK(parse_links(" shm + tcp:eth0 , eth1 ") ==
        std::vector<Link>{{{"shm", {}}, {"tcp", {"eth0", "eth1"}}}});
  CHECK(parse_links("a+b:b0|a+b:b1") ==
        std::vector<Link>{{{"a", {}}, {"b", {"b0"}}}, {{"a", {}}, {"b", {"b1"}}}});
  CHECK(parse_links("mylnx").front().front().provider == "mylnx");
}

TEST_CASE("what cannot be read is refused, naming the part") {
  for (const char* bad : {"",      "+",         "shm+",      "+shm",     "shm++tcp", "shm,tcp", "shm:",
                          ":eth0", "tcp:eth0,", "tcp:,eth0", "tcp:a,,b", "shm+shm",  "tcp:a,a", "shm|",
                          "|shm",  "shm||tcp",  "shm+lnx",   "lnx",      "lnx:shm",  "a b,c"})
    CHECK_THROWS_AS(parse_links(bad), Error);
}

}  // namespace
}  // namespace fab
