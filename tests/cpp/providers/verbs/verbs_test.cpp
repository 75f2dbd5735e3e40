// What the verbs provider reads from peers. The devices themselves are tested by tests/rdma.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/memory/mapping.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/session/frames/frame.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/device/regions.h"

namespace {

using namespace fab;
using verbs::Description;
using verbs::PrivateData;

std::string bytes_of(const PrivateData& data) {
  std::string bytes(PrivateData::kBytes, '\0');
  data.encode(bytes.data());
  return bytes;
}

// A library whose device notes what it is asked for.
struct Asked {
  bool as_dma_buf;
  std::uint64_t offset, length, iova;
  int access;
};
constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
std::vector<Asked> asked;
bool takes_dma_bufs = true;
ibv_mr given{};

verbs::Library noting_library() {
  verbs::Library library{};
  library.reg_mr = [](ibv_pd*, void* start, std::size_t length, int access) -> ibv_mr* {
    asked.push_back({false, 0, length, reinterpret_cast<std::uint64_t>(start), access});
    return &given;
  };
  library.reg_mr_iova2 = [](ibv_pd*, void* start, std::size_t length, std::uint64_t iova,
                            unsigned access) -> ibv_mr* {
    CHECK(start != nullptr);
    asked.push_back({false, 0, length, iova, static_cast<int>(access)});
    return &given;
  };
  library.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                             int access) -> ibv_mr* {
    CHECK(::fcntl(fd, F_GETFD) >= 0);
    asked.push_back({true, offset, length, iova, access});
    if (takes_dma_bufs) return &given;
    errno = EOPNOTSUPP;
    return nullptr;
  };
  return library;
}

}  // namespace

TEST_CASE("what a refusal says survives the way through bytes, and nothing else is taken for one") {
  using verbs::Refusal;
  for (const auto why : {Refusal::Why::busy, Refusal::Why::never, Refusal::Why::failed}) {
    std::string bytes(Refusal::kBytes, '\0');
    Refusal{why}.encode(bytes.data());
    for (const std::string& padded : {bytes, bytes + std::string(140, '\0')}) {
      const auto copy = Refusal::decode(padded);
      REQUIRE(copy);
      CHECK(copy->why == why);
    }
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) CHECK_FALSE(Refusal::decode(bytes.substr(0, cut)));
    for (std::string mutated = bytes; char& byte : mutated) {
      byte = static_cast<char>(byte ^ 0x40);
      CHECK_FALSE(Refusal::decode(mutated));
      byte = static_cast<char>(byte ^ 0x40);
    }
  }
}

TEST_CASE("the private data of a call survives the way through bytes, and nothing else is taken for one") {
  const PrivateData data{
      .purpose = PrivateData::Purpose::memory, .to = {1, 2, 3}, .token = 0x1234567890ABCDEF};
  const std::string bytes = bytes_of(data);
  for (const std::string& padded : {bytes, bytes + std::string(24, '\0')}) {
    const auto copy = PrivateData::decode(padded);
    REQUIRE(copy);
    CHECK(copy->purpose == data.purpose);
    CHECK(copy->to == data.to);
    CHECK(copy->token == data.token);
  }
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) CHECK_FALSE(PrivateData::decode(bytes.substr(0, cut)));
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string mutated = bytes;
    mutated[random() % mutated.size()] = static_cast<char>(random());
    if (const auto parsed = PrivateData::decode(mutated)) CHECK(bytes_of(*parsed) == mutated);
  }
}

TEST_CASE("descriptions survive the way through bytes; what is taken from others lies within 64 bits") {
  Description told{.base = 4096, .access = 48, .atomics = true, .piece_count = 4};
  for (std::uint32_t i = 0; i < 4; ++i) told.pieces[i] = {0x7F0000000000u + i * 8192, 4096 + i, 77 + i};
  std::byte bytes[kDescriptionBytes];
  told.encode(bytes);
  const auto copy = Description::decode(bytes);
  REQUIRE(copy);
  CHECK(copy->base == 4096);
  CHECK(copy->access == 48);
  CHECK(copy->atomics);
  CHECK(copy->length() == 4 * 4096 + 6);
  CHECK(copy->pieces[3].address == 0x7F0000000000u + 3 * 8192);
  CHECK(copy->pieces[3].rkey == 80);

  std::mt19937 random(2);
  for (int round = 0; round < 50'000; ++round) {
    std::byte mutated[kDescriptionBytes];
    std::memcpy(mutated, bytes, sizeof bytes);
    for (unsigned changes = random() % 4; changes-- > 0;)
      mutated[random() % sizeof mutated] = static_cast<std::byte>(random());
    const auto parsed = Description::decode(mutated);
    if (!parsed) continue;
    CHECK(parsed->piece_count >= 1);
    CHECK(parsed->piece_count <= Description::kMostPieces);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < parsed->piece_count; ++i) {
      const auto& piece = parsed->pieces[i];
      CHECK(piece.length != 0);
      CHECK(piece.address + piece.length >= piece.address);
      CHECK(sum + piece.length >= sum);
      sum += piece.length;
    }
    CHECK(parsed->length() == sum);
  }
}

TEST_CASE("memory is shown to peers under addresses that nobody can guess, at its place within a huge page") {
  constexpr std::uint64_t kHugePage = 1u << 30;
  std::set<std::uint64_t> pages;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t start = 0x7F1234567000u + static_cast<std::uint64_t>(i) * 8;
    const std::uint64_t shown = verbs::shown_address(start);
    CHECK(shown % kHugePage == start % kHugePage);
    CHECK(shown < std::uint64_t{1} << 62);
    pages.insert(shown / kHugePage);
  }
  CHECK(pages.size() == 1000);  // of four milliards
  asked.clear();
  std::uint64_t word = 0;
  const AddressRange memory{.start = reinterpret_cast<std::uint64_t>(&word), .length = sizeof word};
  ibv_pd pd{};
  REQUIRE(verbs::register_memory(noting_library(), pd, memory, 4096 + memory.start, kRights) == &given);
  CHECK(asked[0].iova == 4096 + memory.start);
  CHECK(asked[0].access == kRights);
}

TEST_CASE("a device is asked for a dma-buf by its file, and for what is mapped where it does not take it") {
  const std::uint64_t page = page_size();
  const OwnFd file = make_memory_file("dma-buf", 4 * page);
  const OwnFd for_devices(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_WRONLY | O_CLOEXEC));
  const DmaBuf mapped(file.get(), page, std::nullopt), hidden(for_devices.get(), 2 * page, std::nullopt);
  const verbs::Library library = noting_library();
  verbs::Library old = library;
  old.reg_dmabuf_mr = nullptr;
  ibv_pd pd{};
  const auto range = [](const DmaBuf& buffer, std::uint64_t from, std::uint64_t length) {
    return AddressRange{.start = reinterpret_cast<std::uint64_t>(buffer.bytes().data()) + from,
                        .length = length};
  };
  const auto ask = [&](const verbs::Library& from, AddressRange memory, int access = kRights) {
    asked.clear();
    return verbs::register_memory(from, pd, memory, memory.start, access);
  };

  takes_dma_bufs = true;
  for (const DmaBuf* buffer : {&mapped, &hidden}) {
    const AddressRange memory = range(*buffer, 100, page + 8);
    REQUIRE(ask(library, memory, kRights | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_RELAXED_ORDERING) == &given);
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].as_dma_buf);
    CHECK(asked[0].offset == (buffer == &mapped ? page : 2 * page) + 100);
    CHECK(asked[0].length == page + 8);
    CHECK(asked[0].iova == memory.start);
    CHECK(asked[0].access == (kRights | IBV_ACCESS_RELAXED_ORDERING));
  }

  takes_dma_bufs = false;
  const AddressRange memory = range(mapped, 8, 16);
  REQUIRE(ask(library, memory) == &given);
  REQUIRE(asked.size() == 2);
  CHECK_FALSE(asked[1].as_dma_buf);
  CHECK(asked[1].iova == memory.start);
  CHECK(asked[1].length == 16);
  REQUIRE(ask(library, memory, kRights | IBV_ACCESS_RELAXED_ORDERING) == &given);
  CHECK(asked[1].access == (kRights | IBV_ACCESS_RELAXED_ORDERING));
  REQUIRE(ask(old, memory) == &given);
  REQUIRE(asked.size() == 1);
  CHECK_FALSE(asked[0].as_dma_buf);
  // There is nothing at the addresses of what is not mapped.
  CHECK(ask(library, range(hidden, 0, 8)) == nullptr);
  CHECK(asked.size() == 1);
  errno = 0;
  CHECK(ask(old, range(hidden, 0, 8)) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(asked.empty());

  std::uint64_t word = 0;  // other memory
  REQUIRE(ask(library, {.start = reinterpret_cast<std::uint64_t>(&word), .length = 8}) == &given);
  CHECK_FALSE(asked[0].as_dma_buf);
}
