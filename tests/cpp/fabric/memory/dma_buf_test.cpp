#include "fabric/memory/dma_buf.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <vector>

#include "base/memory/fault_guard.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/types/error.h"

// Files stand in for dma-bufs; one that is open for writing only can no more be mapped than what an exporter
// keeps for devices.
namespace {

using namespace fab;

const std::uint64_t kPage = page_size();

struct File {
  explicit File(std::uint64_t pages)
      : fd(make_memory_file("dma-buf", pages * kPage)),
        hidden(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_WRONLY | O_CLOEXEC)) {}
  OwnFd fd, hidden;
};

AddressRange part(const DmaBuf& buffer, std::uint64_t from, std::uint64_t length) {
  return {.start = reinterpret_cast<std::uint64_t>(buffer.bytes().data()) + from, .length = length};
}

Transfer transfer_of(OpCode op, const DmaBuf& local, Delivery delivery = Delivery::delivery) {
  Transfer transfer{};
  transfer.op = op;
  transfer.local = local.bytes().data();
  transfer.length = 8;
  transfer.type = DataType::u64;
  transfer.delivery = delivery;
  return transfer;
}

}  // namespace

TEST_CASE("addresses are found with the file and the offset that they stand for, as long as it is open") {
  const File file(4);
  auto first = std::make_unique<DmaBuf>(file.fd.get(), 0, kPage);
  const DmaBuf rest(file.fd.get(), kPage, std::nullopt);
  REQUIRE(first->bytes().size() == kPage);
  REQUIRE(rest.bytes().size() == 3 * kPage);

  const auto found = DmaBuf::find(part(rest, 104, 2 * kPage));
  REQUIRE(found);
  CHECK(found->offset == kPage + 104);
  CHECK_FALSE(found->hidden);
  std::uint64_t word = 7;
  REQUIRE(::pwrite(found->fd.get(), &word, 8, static_cast<off_t>(found->offset)) == 8);
  CHECK(*reinterpret_cast<std::uint64_t*>(rest.bytes().data() + 104) == 7);

  const AddressRange gone = part(*first, 0, kPage);
  CHECK(DmaBuf::find(gone));
  first.reset();
  CHECK_FALSE(DmaBuf::find(gone));
  CHECK_FALSE(DmaBuf::any_in(gone));

  CHECK(DmaBuf::find(part(rest, 0, 3 * kPage)));
  CHECK_FALSE(DmaBuf::find(part(rest, 0, 3 * kPage + 1)));
  CHECK_FALSE(DmaBuf::find(part(rest, 3 * kPage, 1)));
  CHECK(DmaBuf::any_in(part(rest, 3 * kPage - 1, kPage)));
  CHECK_FALSE(DmaBuf::any_in(part(rest, 3 * kPage, kPage)));
  CHECK_FALSE(DmaBuf::any_in(part(rest, 8, 0)));
}

TEST_CASE("what cannot be mapped takes its addresses, faults, and is not copied") {
  const File file(2);
  const DmaBuf mapped(file.fd.get(), 0, std::nullopt);
  CHECK_FALSE(DmaBuf::any_hidden());
  {
    const DmaBuf hidden(file.hidden.get(), kPage, std::nullopt);
    CHECK(hidden.hidden());
    CHECK(DmaBuf::any_hidden());
    const auto found = DmaBuf::find(part(hidden, 8, 8));
    REQUIRE(found);
    CHECK(found->hidden);
    CHECK(found->offset == kPage + 8);
    CHECK(DmaBuf::hides(part(hidden, kPage - 1, kPage)));
    CHECK_FALSE(DmaBuf::hides(part(mapped, 0, 2 * kPage)));
    arm_fault_guard();
    CHECK_FALSE(guarded([&] { *reinterpret_cast<volatile char*>(hidden.bytes().data()) = 1; }));

    for (const OpCode op : {OpCode::write, OpCode::read, OpCode::send}) {
      CHECK(check_transfer(transfer_of(op, hidden)) == Errc::ok);
      CHECK(check_copied(transfer_of(op, hidden)) == Errc::bounds);
      CHECK(check_copied(transfer_of(op, mapped)) == Errc::ok);
    }
    CHECK(check_transfer(transfer_of(OpCode::write, hidden, Delivery::inject)) == Errc::bounds);
    CHECK(check_transfer(transfer_of(OpCode::atomic, hidden)) == Errc::bounds);
    Transfer fetch = transfer_of(OpCode::fetch_atomic, mapped);
    fetch.result = mapped.bytes().data() + 16;
    CHECK(check_transfer(fetch) == Errc::ok);
    fetch.result = hidden.bytes().data();
    CHECK(check_transfer(fetch) == Errc::bounds);
    Transfer swap = transfer_of(OpCode::compare_atomic, mapped);
    swap.atomic = AtomicOp::cswap;
    swap.result = mapped.bytes().data() + 16;
    swap.compare = hidden.bytes().data();
    CHECK(check_transfer(swap) == Errc::bounds);
    const iovec pieces[] = {{mapped.bytes().data(), 8}, {hidden.bytes().data() + 8, 8}};
    Transfer several = transfer_of(OpCode::write, mapped);
    several.local_pieces = pieces;
    several.piece_count = 2;
    several.length = 16;
    CHECK(check_transfer(several) == Errc::ok);
    CHECK(check_copied(several) == Errc::bounds);
    several.flags = transfer_flag::kStored;  // its bytes went as stripes
    CHECK(check_copied(several) == Errc::ok);
  }
  CHECK_FALSE(DmaBuf::any_hidden());
}

TEST_CASE("only what lies within the file is taken, from a page on") {
  const File file(2);
  for (const auto& [offset, length] :
       std::vector<std::pair<std::uint64_t, std::optional<std::uint64_t>>>{{8, std::nullopt},
                                                                           {2 * kPage, std::nullopt},
                                                                           {0, 0},
                                                                           {0, 2 * kPage + 1},
                                                                           {kPage, kPage + 1},
                                                                           {kPage, ~std::uint64_t{0}}})
    CHECK_THROWS_AS(DmaBuf(file.fd.get(), offset, length), Error);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const OwnFd in(ends[0]), out(ends[1]);
  CHECK_THROWS_AS(DmaBuf(in.get(), 0, std::nullopt), Error);
  CHECK_THROWS_AS(DmaBuf(-1, 0, std::nullopt), Error);
  const DmaBuf buffer(file.fd.get(), 0, kPage);
  CHECK_THROWS_AS(buffer.sync(0), Error);  // the file is none
}
