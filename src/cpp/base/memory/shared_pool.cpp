#include "base/memory/shared_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/process/process.h"

namespace fab {
namespace {

constexpr std::size_t size_of(std::size_t size_class) noexcept {
  return SharedPool::kAlignment << size_class;
}

std::size_t class_of(std::size_t length) noexcept {
  const std::size_t units =
      (std::max<std::size_t>(length, 1) + SharedPool::kAlignment - 1) / SharedPool::kAlignment;
  return static_cast<std::size_t>(std::bit_width(units - 1));
}

std::size_t in_pages(std::size_t length) {
  const std::size_t page = page_size(), rounded = (length + page - 1) / page * page;
  if (rounded < length) throw std::bad_alloc();
  return rounded;
}

// The entry of a map by beginnings whose extent holds `address`, if it has one that begins at or before it.
template <class Map>
auto at_or_before(Map& map, const std::byte* address) {
  auto after = map.upper_bound(const_cast<std::byte*>(address));
  return after == map.begin() ? map.end() : std::prev(after);
}

// Gives the memory of whole pages back to the system; what is read there is zero afterwards. It goes by the
// mapping, because of pages that go by the file nobody hears who watches memory (userfaultfd(2)).
bool discard(std::byte* begin, std::size_t length) noexcept {
  return ::madvise(begin, length, MADV_REMOVE) == 0;
}

bool lies_in(const SharedMemory& memory, const std::byte* begin, std::size_t length) noexcept {
  const std::byte* const first = memory.mapping.data();
  const auto offset = static_cast<std::size_t>(begin - first);
  return begin >= first && offset <= memory.mapping.size() && length <= memory.mapping.size() - offset;
}

}  // namespace

SharedPool::SharedPool() noexcept : generation_(fork_generation()) {}

void* SharedPool::allocate(std::size_t length, bool zeroed) noexcept {
  std::byte* piece = nullptr;
  bool written = true;
  try {
    const ForkGate gate;
    const LockGuard lock(mutex_);
    leave_to_parent();
    if (length <= kLargestBlock) {
      piece = take_block(class_of(length));
    } else {
      const auto range = take_range(in_pages(length));
      piece = range->first;
      written = range->second.written;
    }
  } catch (const std::exception&) {
    return nullptr;
  }
  constexpr std::size_t kDiscarded = std::size_t{1} << 20;  // from here on, new pages cost less than zeros
  if (zeroed && written && (length < kDiscarded || !discard(piece, in_pages(length))))
    std::memset(piece, 0, length);
  return piece;
}

void* SharedPool::reallocate(void* piece, std::size_t length) noexcept {
  if (!piece) return allocate(length);
  std::size_t former = 0;
  {
    const ForkGate gate;
    const LockGuard lock(mutex_);
    former = length_of(static_cast<std::byte*>(piece));
  }
  // What still fits stays, unless a smaller piece would do.
  if (length <= former && (length > former / 2 || former == kAlignment)) return piece;
  void* const moved = allocate(length);
  if (!moved) return nullptr;
  std::memcpy(moved, piece, std::min(former, length));
  free(piece);
  return moved;
}

void SharedPool::free(void* piece) noexcept {
  if (!piece) return;
  auto* const begin = static_cast<std::byte*>(piece);
  Ranges::node_type range;
  {
    const ForkGate gate;
    const LockGuard lock(mutex_);
    leave_to_parent();
    if (const auto slab = at_or_before(slabs_, begin); slab != slabs_.end() && begin < slab->first + kSlab)
      return blocks_[slab->second].push_back(begin);  // there is room for all of them
    range = taken_.extract(begin);
    if (!range) return;  // it was the parent's, who still has it
    range.mapped().written = true;
    range.mapped().kept = range.mapped().length;
    if (kept_ + range.mapped().length <= kKept) return give_back(std::move(range));
  }
  if (discard(begin, range.mapped().length)) {
    range.mapped().written = false;
    range.mapped().kept = 0;
  }
  const ForkGate gate;
  const LockGuard lock(mutex_);
  give_back(std::move(range));
}

std::shared_ptr<SharedMemory> SharedPool::holder(const void* address, std::size_t length) const noexcept {
  const ForkGate gate;
  const LockGuard lock(mutex_);
  return file_of(static_cast<const std::byte*>(address), length);
}

// --- blocks

std::byte* SharedPool::take_block(std::size_t size_class) {
  std::vector<std::byte*>& blocks = blocks_[size_class];
  if (blocks.empty()) {
    const std::size_t size = size_of(size_class), count = kSlab / size;
    blocks.reserve(blocks_made_[size_class] + count);
    Slabs slab;
    auto entry = slab.extract(slab.emplace(nullptr, size_class).first);
    std::byte* const begin = take_range(kSlab)->first;  // nothing fails after this
    entry.key() = begin;
    slabs_.insert(std::move(entry));
    blocks_made_[size_class] += count;
    for (std::size_t i = count; i-- > 0;) blocks.push_back(begin + i * size);
  }
  std::byte* const block = blocks.back();
  blocks.pop_back();
  return block;
}

// --- ranges of pages

// Moves the first range that is long enough, or its beginning, to taken_.
SharedPool::Ranges::const_iterator SharedPool::take_range(std::size_t length) {
  auto found = std::ranges::find_if(free_, [&](const auto& range) { return range.second.length >= length; });
  if (found == free_.end()) found = grow(length);
  const auto [begin, whole] = *found;
  const std::size_t left = whole.length - length;
  const auto taken = taken_.emplace(begin, Range{length, whole.written}).first;
  auto rest = free_.extract(found);
  kept_ -= whole.kept;
  if (left != 0) {
    // What has memory is mostly at the beginning, because that is given out first.
    rest.key() = begin + length;
    rest.mapped() = {left, whole.written, whole.kept - std::min(whole.kept, length)};
    kept_ += rest.mapped().kept;
    free_.insert(std::move(rest));
  }
  return taken;
}

SharedPool::Ranges::iterator SharedPool::grow(std::size_t length) {
  // Each file is half as large as all before it together, so that few descriptors are enough for any memory.
  std::size_t all = 0;
  for (const auto& [begin, memory] : files_) all += memory->mapping.size();
  std::shared_ptr<SharedMemory> memory = allocate_shared(std::max({length, kFile, in_pages(all / 2)}));
  std::byte* const begin = memory->mapping.data();
  const auto range = free_.emplace(begin, Range{memory->mapping.size()}).first;
  try {
    files_.emplace(begin, std::move(memory));
  } catch (...) {
    free_.erase(range);
    throw;
  }
  return range;
}

void SharedPool::give_back(Ranges::node_type range) noexcept {
  kept_ += range.mapped().kept;
  auto here = free_.insert(std::move(range)).position;
  // True if the second, which is the next one, has become a part of the first.
  const auto joined = [&](Ranges::iterator first, Ranges::iterator second) FAB_REQUIRES(mutex_) {
    // Files that lie beside each other do so by chance.
    if (first->first + first->second.length != second->first || files_.contains(second->first)) return false;
    first->second.length += second->second.length;
    first->second.written |= second->second.written;
    first->second.kept += second->second.kept;
    free_.erase(second);
    return true;
  };
  if (const auto next = std::next(here); next != free_.end()) joined(here, next);
  if (here != free_.begin())
    if (const auto before = std::prev(here); joined(before, here)) here = before;
  drop_if_empty(here);
}

// A file in which nothing lies goes, unless it is the last one.
void SharedPool::drop_if_empty(Ranges::iterator range) noexcept {
  const auto file = files_.find(range->first);
  if (file == files_.end() || files_.size() == 1 || file->second->mapping.size() != range->second.length)
    return;
  kept_ -= range->second.kept;
  free_.erase(range);
  files_.erase(file);
}

std::size_t SharedPool::length_of(std::byte* piece) const noexcept {
  for (const auto* slabs : {&slabs_, &former_slabs_})
    if (const auto slab = at_or_before(*slabs, piece); slab != slabs->end() && piece < slab->first + kSlab)
      return size_of(slab->second);
  for (const auto* taken : {&taken_, &former_taken_})
    if (const auto range = taken->find(piece); range != taken->end()) return range->second.length;
  return 0;
}

std::shared_ptr<SharedMemory> SharedPool::file_of(const std::byte* begin, std::size_t length) const noexcept {
  for (const auto* files : {&files_, &former_files_})
    if (const auto file = at_or_before(*files, begin);
        file != files->end() && lies_in(*file->second, begin, length))
      return file->second;
  return nullptr;
}

void SharedPool::leave_to_parent() noexcept {
  if (generation_ == fork_generation()) return;
  generation_ = fork_generation();
  former_files_.merge(files_);
  former_taken_.merge(taken_);
  former_slabs_.merge(slabs_);
  free_.clear();
  for (auto& blocks : blocks_) blocks.clear();
  blocks_made_ = {};
  kept_ = 0;
}

SharedPool& shared_pool() {
  static constinit MadeOnce<SharedPool> pool;
  return pool.get([] { return SharedPool(); });
}

}  // namespace fab
