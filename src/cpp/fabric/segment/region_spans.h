#pragma once

#include <span>
#include <vector>

#include "base/lifetime.h"
#include "fabric/segment/region_table.h"

namespace fab {

// A set of a region's bytes, as spans in rising order that neither overlap nor touch.
class RegionSpans {
 public:
  RegionSpans() noexcept = default;
  explicit RegionSpans(std::vector<RegionSpan> any);  // takes spans in any order, overlapping and empty ones
  std::span<const RegionSpan> view() const noexcept FAB_LIFETIME_BOUND { return spans_; }

  friend RegionSpans operator|(const RegionSpans& left, const RegionSpans& right);
  friend RegionSpans operator&(const RegionSpans& left, const RegionSpans& right);
  friend RegionSpans operator-(const RegionSpans& left, const RegionSpans& right);

 private:
  std::vector<RegionSpan> spans_;
};

}  // namespace fab
