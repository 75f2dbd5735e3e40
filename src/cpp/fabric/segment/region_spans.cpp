#include "fabric/segment/region_spans.h"

#include <algorithm>
#include <utility>

namespace fab {
namespace {

std::uint64_t end_of(const RegionSpan& span) noexcept { return span.offset + span.length; }

}  // namespace

RegionSpans::RegionSpans(std::vector<RegionSpan> any) {
  std::ranges::sort(any, {}, &RegionSpan::offset);
  for (const RegionSpan& span : any) {
    if (span.length == 0) continue;
    if (spans_.empty() || end_of(spans_.back()) < span.offset)
      spans_.push_back(span);
    else
      spans_.back().length = std::max(end_of(spans_.back()), end_of(span)) - spans_.back().offset;
  }
}

RegionSpans operator|(const RegionSpans& left, const RegionSpans& right) {
  std::vector<RegionSpan> both = left.spans_;
  both.insert(both.end(), right.spans_.begin(), right.spans_.end());
  return RegionSpans(std::move(both));
}

RegionSpans operator&(const RegionSpans& left, const RegionSpans& right) {
  RegionSpans common;
  auto a = left.spans_.begin(), b = right.spans_.begin();
  while (a != left.spans_.end() && b != right.spans_.end()) {
    const std::uint64_t start = std::max(a->offset, b->offset), end = std::min(end_of(*a), end_of(*b));
    if (start < end) common.spans_.push_back({start, end - start});
    if (end_of(*a) < end_of(*b))
      ++a;
    else
      ++b;
  }
  return common;
}

RegionSpans operator-(const RegionSpans& left, const RegionSpans& right) {
  std::vector<RegionSpan> gaps;  // of `right`
  std::uint64_t start = 0;
  for (const RegionSpan& span : right.spans_) {
    gaps.push_back({start, span.offset - start});
    start = end_of(span);
  }
  gaps.push_back({start, ~std::uint64_t{0} - start});
  return left & RegionSpans(std::move(gaps));
}

}  // namespace fab
