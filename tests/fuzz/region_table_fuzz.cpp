#include <sys/mman.h>

#include "fabric/segment/region_table.h"
#include "fabric/types/error.h"
#include "input.h"

// The region table of another process, which may write anything there at any time: whatever it holds, a
// reader comes back, and what it is told lies within bounds.

using namespace fab;
using namespace fab::test;

namespace {

// As large as a real table, of which only what is touched takes memory.
std::byte* const area =
    static_cast<std::byte*>(::mmap(nullptr, RegionView::kAreaBytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

void place(std::size_t at, std::string_view bytes) {
  std::memcpy(area + at, bytes.data(), std::min(bytes.size(), RegionView::kAreaBytes - at));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::uint64_t key = input.get<std::uint64_t>();
  const auto remote = input.get<std::uint64_t>(), length = input.get<std::uint64_t>();
  const auto op = static_cast<OpCode>(input.byte() % 5);
  place(0, input.take(16));                    // which index is in force
  place(4096 + key % 64 * 4, input.take(64));  // some of an index
  place(RegionView::kEntriesOffset, input.take(4 * sizeof(RegionEntry)));
  place(RegionView::kPiecesOffset, input.take(1024));

  const RegionView view(area);
  const std::int64_t found = view.find(key);
  demand(found >= -1 && found < static_cast<std::int64_t>(RegionView::kMaxRegions),
         "an index is one of the table");
  ContextRights rights{};
  rights.endpoint.store(1);
  for (std::uint32_t index = 0; index < 4; ++index) {
    const RegionEntry& entry = view.entry(index);
    const Requester requester{rights, static_cast<std::uint32_t>(key >> 60)};
    std::uint64_t offset = 0;
    if (view.judge(entry, {entry.key.load(), 0, op, remote, length}, requester, offset) != Errc::ok) continue;
    demand(offset <= entry.length && length <= entry.length - offset,
           "what is allowed lies within the region");
    iovec pieces[RegionView::kMaxRegionPieces];
    const std::size_t count = view.pieces(entry, offset, length, pieces);
    demand(count <= RegionView::kMaxRegionPieces, "a request has few pieces");
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += pieces[i].iov_len;
    demand(sum <= length, "the pieces are no longer than the request");
  }
  // What was touched is as before: an input must not see the one before it.
  std::memset(area, 0, 16);
  std::memset(area + 4096, 0, 64 * 4 + 64);
  std::memset(area + RegionView::kEntriesOffset, 0, 4 * sizeof(RegionEntry));
  std::memset(area + RegionView::kPiecesOffset, 0, 1024);
  return 0;
}
