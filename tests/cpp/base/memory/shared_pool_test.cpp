#include "base/memory/shared_pool.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

using namespace fab;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool is_filled(const void* piece, std::size_t length, std::uint8_t with) {
  const auto* bytes = static_cast<const std::uint8_t*>(piece);
  return std::all_of(bytes, bytes + length, [with](std::uint8_t byte) { return byte == with; });
}

bool is_aligned(const void* piece, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(piece) % to == 0;
}

// Bytes of memory that a file has.
std::size_t backed(const SharedMemory& memory) {
  struct stat found{};
  REQUIRE(::fstat(memory.file.get(), &found) == 0);
  return static_cast<std::size_t>(found.st_blocks) * 512;
}

// A piece, and what it was filled with.
struct Piece {
  void* address;
  std::size_t length;
  std::uint8_t content;
};

// Random calls; each piece keeps its bytes, whatever happens to the others.
void play(SharedPool& pool, std::uint32_t seed, int rounds) {
  std::minstd_rand random(seed);
  std::vector<Piece> pieces;
  const auto some_length = [&]() -> std::size_t {
    constexpr std::size_t kSizes[] = {1, 64, 65, 1000, 16 * 1024, 16 * 1024 + 1, 100'000, kMiB + 5};
    return std::max<std::size_t>(kSizes[random() % std::size(kSizes)] - random() % 2, 1);
  };
  for (int round = 0; round < rounds; ++round) {
    const auto content = static_cast<std::uint8_t>(random() % 255 + 1);
    const std::size_t which = pieces.empty() ? 0 : random() % pieces.size();
    switch (random() % 4) {
      case 0:
      case 1: {
        const std::size_t length = some_length();
        const bool zeroed = random() % 2 != 0;
        void* const piece = pool.allocate(length, zeroed);
        REQUIRE(piece);
        if (!is_aligned(piece, length > SharedPool::kLargestBlock ? page_size() : SharedPool::kAlignment))
          FAIL("not aligned");
        if (zeroed && !is_filled(piece, length, 0)) FAIL("not zeroed");
        std::memset(piece, content, length);
        pieces.push_back({piece, length, content});
        break;
      }
      case 2: {
        if (pieces.empty()) break;
        Piece& piece = pieces[which];
        const std::size_t length = some_length();
        piece.address = pool.reallocate(piece.address, length);
        REQUIRE(piece.address);
        if (!is_filled(piece.address, std::min(length, piece.length), piece.content)) FAIL("lost bytes");
        std::memset(piece.address, content, length);
        piece = {piece.address, length, content};
        break;
      }
      default:
        if (pieces.empty()) break;
        if (!is_filled(pieces[which].address, pieces[which].length, pieces[which].content))
          FAIL("overwritten");
        pool.free(pieces[which].address);
        pieces[which] = pieces.back();
        pieces.pop_back();
    }
  }
  for (const Piece& piece : pieces) {
    if (!is_filled(piece.address, piece.length, piece.content)) FAIL("overwritten");
    pool.free(piece.address);
  }
}

}  // namespace

TEST_CASE("pieces of all sizes keep their bytes, and zeroed ones are zero") {
  SharedPool pool;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) play(pool, seed, 400);
}

TEST_CASE("threads take and free pieces side by side") {
  SharedPool pool;
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&pool, seed] { play(pool, seed, 150); });
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("many pieces share one file, and what they lie in is found") {
  SharedPool pool;
  void* const small = pool.allocate(100);
  void* const large = pool.allocate(5 * kMiB);
  const auto file = pool.holder(small, 100);
  REQUIRE(file);
  CHECK(pool.holder(large, 5 * kMiB) == file);
  CHECK(pool.holder(static_cast<std::byte*>(large) + kMiB, kMiB) == file);
  CHECK_FALSE(pool.holder(file->mapping.data() - 1, 1));
  CHECK_FALSE(pool.holder(file->mapping.data(), file->mapping.size() + 1));
  CHECK_FALSE(pool.holder(&pool, 1));
  void* const huge = pool.allocate(SharedPool::kFile + 1);
  CHECK(pool.holder(huge, SharedPool::kFile + 1) != file);
  pool.free(huge);
  CHECK_FALSE(pool.holder(huge, 1));  // a file in which nothing lies has gone
  pool.free(large);
  pool.free(small);
  CHECK(pool.holder(small, 1) == file);  // but for the last one
}

TEST_CASE("what is free keeps little memory, and is one range again") {
  SharedPool pool;
  std::vector<void*> pieces(12);
  const std::size_t each = SharedPool::kKept / 4;
  for (void*& piece : pieces) std::memset(piece = pool.allocate(each), 1, each);
  const auto file = pool.holder(pieces[0], each);
  CHECK(backed(*file) >= pieces.size() * each);
  for (const std::size_t which : {1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10}) pool.free(pieces[which]);
  CHECK(backed(*file) <= SharedPool::kKept + kMiB);
  const std::size_t all = file->mapping.size();
  void* const whole = pool.allocate(all, true);
  CHECK(whole == file->mapping.data());
  CHECK(is_filled(whole, pieces.size() * each, 0));
  pool.free(whole);
}

TEST_CASE("as much as is kept keeps its memory, however often it is used again") {
  SharedPool pool;
  constexpr std::size_t kEach = SharedPool::kKept / 4;
  void* const first = pool.allocate(kEach);
  const auto file = pool.holder(first, kEach);
  std::vector<void*> pieces{first};
  for (int round = 0; round < 6; ++round) {
    while (pieces.size() < 4) pieces.push_back(pool.allocate(kEach));
    for (void* const piece : pieces) std::memset(piece, 1, kEach);
    for (void* const piece : pieces) pool.free(piece);
    pieces.clear();
    CHECK(backed(*file) == SharedPool::kKept);
  }
  // One more than is kept goes, and is made anew when it is used.
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) std::memset(pieces.emplace_back(pool.allocate(kEach)), 1, kEach);
    for (void* const piece : pieces) pool.free(piece);
    pieces.clear();
    CHECK(backed(*file) == SharedPool::kKept);
  }
}

TEST_CASE("a file that goes takes what it kept with it") {
  SharedPool pool;
  constexpr std::size_t kEach = SharedPool::kKept / 2;
  void* const whole = pool.allocate(SharedPool::kFile);
  for (int round = 0; round < 4; ++round) {
    void* const piece = pool.allocate(kEach);  // in a file of its own, which goes with it
    std::memset(piece, 1, kEach);
    pool.free(piece);
    CHECK_FALSE(pool.holder(piece, 1));
  }
  const auto file = pool.holder(whole, 1);
  pool.free(whole);
  void* const piece = pool.allocate(kEach);
  std::memset(piece, 1, kEach);
  pool.free(piece);
  CHECK(backed(*file) >= kEach);
}

TEST_CASE("files grow with all that there is") {
  SharedPool pool;
  std::size_t sizes[4];
  for (std::size_t& size : sizes) {
    void* const piece = pool.allocate(SharedPool::kFile);  // of which no page is touched
    size = pool.holder(piece, 1)->mapping.size();
    if (const std::size_t left = size - SharedPool::kFile) REQUIRE(pool.allocate(left));
  }
  CHECK(sizes[0] == SharedPool::kFile);
  CHECK(sizes[2] == SharedPool::kFile);
  CHECK(sizes[3] == SharedPool::kFile / 2 * 3);
}

TEST_CASE("a piece stays where it is unless it is too small or much too large, and what it leaves is free") {
  SharedPool pool;
  void* const piece = pool.allocate(1024);
  CHECK(pool.reallocate(piece, 1024) == piece);
  CHECK(pool.reallocate(piece, 513) == piece);
  void* const smaller = pool.reallocate(piece, 512);
  CHECK(smaller != piece);
  CHECK(pool.allocate(1024) == piece);
  void* const larger = pool.reallocate(smaller, 513);
  CHECK(larger != smaller);
  CHECK(pool.allocate(512) == smaller);
  const std::size_t page = page_size(), pages = SharedPool::kLargestBlock + 3 * page;
  void* const range = pool.allocate(pages);
  CHECK(pool.reallocate(range, pages - 10) == range);
  CHECK(pool.reallocate(range, pages + 1) != range);
  CHECK(pool.allocate(pages) == range);
}

TEST_CASE("a length that cannot be is refused, and nothing happens for no piece") {
  SharedPool pool;
  CHECK(pool.allocate(~std::size_t{0}) == nullptr);
  CHECK(pool.allocate(std::size_t{1} << 62) == nullptr);
  void* const piece = pool.reallocate(nullptr, 10);
  CHECK(piece);
  CHECK(pool.reallocate(piece, std::size_t{1} << 62) == nullptr);  // the piece is still there
  CHECK(pool.reallocate(piece, 20) == piece);
  CHECK(pool.allocate(0));
  pool.free(nullptr);
}

TEST_CASE("a child of fork() takes nothing of its parent's, and shares what there was") {
  SharedPool pool;
  auto* const shared = static_cast<std::uint8_t*>(pool.allocate(100'000, true));
  auto* const block = static_cast<std::uint8_t*>(pool.allocate(100, true));
  const pid_t child = ::fork();
  if (child == 0) {
    auto* const own = static_cast<std::uint8_t*>(pool.allocate(100'000, true));
    auto* const own_block = static_cast<std::uint8_t*>(pool.allocate(100, true));
    bool good = own && own_block && pool.holder(own, 1) != pool.holder(shared, 1);
    good &= pool.holder(shared, 100'000) != nullptr;
    good &= pool.holder(own_block, 1) != pool.holder(block, 1);
    std::memset(own, 7, 100'000);
    std::memset(own_block, 7, 100);
    shared[0] = 9;
    auto* const moved = static_cast<std::uint8_t*>(pool.reallocate(shared, 300'000));
    good &= moved != shared && moved[0] == 9;
    for (std::uint8_t* const parents : {block, shared}) pool.free(parents);
    good &= pool.allocate(100) != block && pool.allocate(100'000) != shared;
    pool.free(own_block);
    good &= pool.allocate(100) == own_block;  // what it made itself is its own
    ::_exit(good ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(shared[0] == 9);
  CHECK(is_filled(shared + 1, 99'999, 0));
  CHECK(is_filled(block, 100, 0));
  CHECK(pool.allocate(100) != block);
  pool.free(shared);
  CHECK(pool.allocate(100'000) == shared);
}

TEST_CASE("whatever a child of fork() does first, nothing of its parent's is given out there") {
  SharedPool pool;
  void* const range = pool.allocate(100'000);
  void* const block = pool.allocate(100);
  const auto parents = pool.holder(range, 1);
  auto* const more_than_kept = static_cast<std::uint8_t*>(pool.allocate(SharedPool::kKept + kMiB));
  *more_than_kept = 5;
  for (const bool moves : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      void* const moved = moves ? pool.reallocate(range, 300'000) : nullptr;
      bool good = !moves || pool.holder(moved, 1) != parents;
      pool.free(more_than_kept);
      pool.free(range);
      pool.free(block);
      pool.allocate(SharedPool::kFile - kMiB);  // most of a file of its own
      for (int i = 0; i < 20; ++i) good &= pool.holder(pool.allocate(100'000), 1) != parents;
      good &= pool.holder(pool.allocate(100), 1) != parents;
      ::_exit(good ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(*more_than_kept == 5);
  }
}
