// Which processors take what a device writes faster if it may come in any order.
#include "providers/verbs/device/relaxed_ordering.h"

#include <doctest/doctest.h>

using fab::verbs::prefers_relaxed_ordering;

TEST_CASE("the first processor tells") {
  CHECK(prefers_relaxed_ordering(
      "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\n"));
  CHECK(prefers_relaxed_ordering("vendor_id : AuthenticAMD\ncpu family\t: 26"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id\t: AuthenticAMD\ncpu family\t: 21\n"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id\t: AuthenticAMD\n"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id\t: AuthenticAMD\ncpu family\t: old\n"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id\t: AuthenticAMD\ncpu family\t:\n"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id\t: GenuineIntel\ncpu family\t: 25\n"));
  CHECK_FALSE(prefers_relaxed_ordering("vendor_id_too\t: AuthenticAMD\ncpu family\t: 25\n"));
}

TEST_CASE("and so do those of ARM") {
  CHECK(prefers_relaxed_ordering("processor\t: 0\nCPU implementer\t: 0x46\nCPU part\t: 0x001\n"));
  CHECK(prefers_relaxed_ordering("CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"));
  CHECK_FALSE(prefers_relaxed_ordering("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"));
  CHECK_FALSE(prefers_relaxed_ordering(""));
  CHECK_FALSE(prefers_relaxed_ordering("no colon anywhere"));
}
