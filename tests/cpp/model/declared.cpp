#include <sstream>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/scheduler.h"

namespace model {
namespace {

struct Range {
  std::uintptr_t begin;
  std::size_t size;
  std::uintptr_t first = 0;
  std::string called = {};
  bool has(std::uintptr_t address) const noexcept { return address - begin < size; }
};
std::vector<Range> watched, aliases, names;

std::uintptr_t number_of(const void* address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }

// setup() declares the same again before each execution.
void add(std::vector<Range>& ranges, Range range) {
  for (const Range& old : ranges)
    if (old.begin == range.begin && old.size == range.size) return;
  ranges.push_back(std::move(range));
}

}  // namespace

void watch(const void* begin, std::size_t size) { add(watched, {number_of(begin), size}); }

void alias(const void* first, const void* second, std::size_t size) {
  add(aliases, {number_of(second), size, number_of(first)});
}

void name(const void* begin, std::size_t size, std::string called) {
  add(names, {number_of(begin), size, 0, std::move(called)});
}

std::uintptr_t first_address(std::uintptr_t address) noexcept {
  for (const Range& range : aliases)
    if (range.has(address)) return range.first + (address - range.begin);
  return address;
}

bool is_watched(std::uintptr_t address, std::size_t size) noexcept {
  for (const Range& range : watched)
    if (address < range.begin + range.size && range.begin < address + size) return true;
  return false;
}

std::string called(std::uintptr_t address) {
  std::ostringstream out;
  for (const Range& range : names) {
    if (!range.has(address)) continue;
    out << range.called;
    if (address != range.begin) out << " + " << address - range.begin;
    return out.str();
  }
  out << "0x" << std::hex << address;
  return out.str();
}

}  // namespace model
