// What peers do at an endpoint is counted; endpoints have several contexts; processes share address vectors.

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "libfabric/node.h"

using namespace fab::test;

namespace {

// Of the same domain, to be closed before the node.
fid_ep* another_endpoint(Node& node) {
  fid_ep* opened = nullptr;
  REQUIRE(fi_endpoint(node.domain, info_for(Hints()).get(), &opened, nullptr) == 0);
  REQUIRE(fi_ep_bind(opened, &node.av->fid, 0) == 0);
  REQUIRE(fi_ep_bind(opened, &node.cq->fid, FI_TRANSMIT | FI_RECV) == 0);
  REQUIRE(fi_enable(opened) == 0);
  return opened;
}

}  // namespace

TEST_CASE("an endpoint counts what peers put and get through it, and no other endpoint does") {
  for (const char* const links : {"shm", "tcp:lo"}) {
    CAPTURE(links);
    const Links over(links);
    fid_cntr *writes = nullptr, *reads = nullptr;
    Node here, there(0, Hints(), [&](Node& node) {
      writes = node.counter();
      reads = node.counter();
      CHECK(fi_ep_bind(node.ep, &writes->fid, 1ULL << 50) == -FI_EBADFLAGS);
      REQUIRE(fi_ep_bind(node.ep, &writes->fid, FI_REMOTE_WRITE) == 0);
      REQUIRE(fi_ep_bind(node.ep, &reads->fid, FI_REMOTE_READ) == 0);
    });
    const fi_addr_t to = here.insert(there);
    alignas(8) std::array<std::uint64_t, 1 << 17> memory{}, local{};
    const Region region(there, memory.data(), sizeof memory, 5);
    std::uint64_t expected_writes = 0, expected_reads = 0;
    const auto counted = [&](int status, std::uint64_t wrote, std::uint64_t read) {
      REQUIRE(status == 0);
      here.entry();
      expected_writes += wrote;
      expected_reads += read;
      CHECK(fi_cntr_wait(writes, expected_writes, 5000) == 0);
      CHECK(fi_cntr_wait(reads, expected_reads, 5000) == 0);
      CHECK(fi_cntr_read(writes) == expected_writes);
      CHECK(fi_cntr_read(reads) == expected_reads);
    };
    std::uint64_t one = 1, none = 0, found = 0;
    for (const std::size_t size : {std::size_t{8}, std::size_t{5000}, sizeof local}) {
      counted(static_cast<int>(fi_write(here.ep, local.data(), size, nullptr, to, 0, 5, nullptr)), 1, 0);
      counted(static_cast<int>(fi_read(here.ep, local.data(), size, nullptr, to, 0, 5, nullptr)), 0, 1);
    }
    counted(static_cast<int>(fi_atomic(here.ep, &one, 1, nullptr, to, 0, 5, FI_UINT64, FI_SUM, nullptr)), 1,
            0);
    counted(static_cast<int>(fi_fetch_atomic(here.ep, &one, 1, nullptr, &found, nullptr, to, 0, 5, FI_UINT64,
                                             FI_SUM, nullptr)),
            1, 1);
    counted(static_cast<int>(fi_fetch_atomic(here.ep, nullptr, 1, nullptr, &found, nullptr, to, 0, 5,
                                             FI_UINT64, FI_ATOMIC_READ, nullptr)),
            0, 1);
    CHECK(found == 2);
    counted(static_cast<int>(fi_compare_atomic(here.ep, &one, 1, nullptr, &none, nullptr, &found, nullptr, to,
                                               0, 5, FI_UINT64, FI_CSWAP, nullptr)),
            0, 1);  // which changes nothing
    REQUIRE(fi_read(here.ep, local.data(), 8, nullptr, to, 0, 6, nullptr) == 0);
    CHECK(here.error().err == FI_EKEYREJECTED);
    fid_ep* const other = another_endpoint(there);
    REQUIRE(fi_write(here.ep, local.data(), 8, nullptr, insert(here.av, name_of(other)), 0, 5, nullptr) == 0);
    here.entry();
    counted(static_cast<int>(fi_write(here.ep, local.data(), 8, nullptr, to, 0, 5, nullptr)), 1, 0);
    CHECK(fi_close(&other->fid) == 0);
  }
}

namespace {

// An endpoint with two contexts, and a queue for each side.
struct Contexts {
  static constexpr int kCount = 2, kBits = 1;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_ep *whole = nullptr, *tx[kCount]{}, *rx[kCount]{};
  fid_cq *tx_cq[kCount]{}, *rx_cq[kCount]{};

  Contexts() {
    Hints hints;
    hints.info.caps = FI_MSG | FI_NAMED_RX_CTX;
    hints.ep.tx_ctx_cnt = hints.ep.rx_ctx_cnt = kCount;
    const InfoPtr info = info_for(hints);
    REQUIRE(info);
    CHECK(info->ep_attr->tx_ctx_cnt == kCount);
    REQUIRE(provider().fabric(info->fabric_attr, &fabric, nullptr) == 0);
    REQUIRE(fi_domain(fabric, info.get(), &domain, nullptr) == 0);
    fi_av_attr av_attr{};
    av_attr.rx_ctx_bits = kBits;
    REQUIRE(fi_av_open(domain, &av_attr, &av, nullptr) == 0);
    info->ep_attr->tx_ctx_cnt = 1000;
    CHECK(fi_scalable_ep(domain, info.get(), &whole, nullptr) == -FI_EINVAL);
    info->ep_attr->tx_ctx_cnt = kCount;
    REQUIRE(fi_scalable_ep(domain, info.get(), &whole, nullptr) == 0);
    CHECK(fi_enable(whole) == -FI_ENOAV);
    REQUIRE(fi_scalable_ep_bind(whole, &av->fid, 0) == 0);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    cq_attr.wait_obj = FI_WAIT_UNSPEC;
    for (int i = 0; i < kCount; ++i) {
      REQUIRE(fi_tx_context(whole, i, nullptr, &tx[i], nullptr) == 0);
      REQUIRE(fi_rx_context(whole, i, nullptr, &rx[i], nullptr) == 0);
      REQUIRE(fi_cq_open(domain, &cq_attr, &tx_cq[i], nullptr) == 0);
      REQUIRE(fi_cq_open(domain, &cq_attr, &rx_cq[i], nullptr) == 0);
      REQUIRE(fi_ep_bind(tx[i], &tx_cq[i]->fid, FI_TRANSMIT) == 0);
      REQUIRE(fi_ep_bind(rx[i], &rx_cq[i]->fid, FI_RECV) == 0);
      CHECK(fi_ep_bind(rx[i], &av->fid, 0) == -FI_EINVAL);  // the whole has one
      REQUIRE(fi_enable(tx[i]) == 0);
    }
    fid_ep* more = nullptr;
    CHECK(fi_tx_context(whole, 0, nullptr, &more, nullptr) == -FI_EBUSY);
    CHECK(fi_tx_context(whole, kCount, nullptr, &more, nullptr) == -FI_EINVAL);
    std::size_t length = 0;
    REQUIRE(fi_enable(whole) == 0);
    CHECK(fi_getname(&whole->fid, nullptr, &length) == -FI_EOPBADSTATE);  // receive contexts are missing
    for (fid_ep* const each : rx) REQUIRE(fi_enable(each) == 0);
  }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    CHECK(fi_close(&whole->fid) == -FI_EBUSY);
    for (int i = 0; i < kCount; ++i) {
      if (tx[i]) CHECK(fi_close(&tx[i]->fid) == 0);
      CHECK(fi_close(&rx[i]->fid) == 0);
    }
    CHECK(fi_close(&whole->fid) == 0);
    for (int i = 0; i < kCount; ++i) {
      CHECK(fi_close(&tx_cq[i]->fid) == 0);
      CHECK(fi_close(&rx_cq[i]->fid) == 0);
    }
    for (fid* const each : {&av->fid, &domain->fid, &fabric->fid}) CHECK(fi_close(each) == 0);
  }
  fi_addr_t insert(const Contexts& peer) const { return fab::test::insert(av, name_of(peer.whole)); }
};

}  // namespace

TEST_CASE("a put with data that was counted has its entry in the queue") {
  for (const char* const links : {"shm", "tcp:lo"}) {
    CAPTURE(links);
    const Links over(links);
    fid_cntr* writes = nullptr;
    Node here, there(0, Hints(), [&](Node& node) {
      writes = node.counter();
      REQUIRE(fi_ep_bind(node.ep, &writes->fid, FI_REMOTE_WRITE) == 0);
    });
    const fi_addr_t to = here.insert(there);
    std::uint64_t memory = 0;
    const Region region(there, &memory, sizeof memory, 5);
    int missed = 0;
    for (std::uint64_t puts = 1; puts <= 2000; ++puts) {
      REQUIRE(fi_inject_writedata(here.ep, &puts, sizeof puts, puts, to, 0, 5) == 0);
      while (fi_cntr_read(writes) < puts) {
      }
      fi_cq_tagged_entry told{};
      if (fi_cq_read(there.cq, &told, 1) != 1) {
        ++missed;
        told = there.entry();
      }
      REQUIRE(told.data == puts);
      REQUIRE(memory == puts);
    }
    CHECK(missed == 0);
  }
}

TEST_CASE("each context of an endpoint sends and receives for itself, under one name") {
  for (const char* const links : {"shm", "tcp:lo", "shm+tcp:lo"}) {
    CAPTURE(links);
    const Links over(links);
    const Contexts here, there;
    const fi_addr_t to = here.insert(there), back = there.insert(here);
    for (int from = 0; from < Contexts::kCount; ++from)
      for (int at = 0; at < Contexts::kCount; ++at) {
        std::array<char, 16> landing{};
        int context = 0;
        REQUIRE(fi_recv(there.rx[at], landing.data(), landing.size(), nullptr, FI_ADDR_UNSPEC, &context) ==
                0);
        const std::string text = std::to_string(from) + " to " + std::to_string(at);
        REQUIRE(fi_send(here.tx[from], text.data(), text.size(), nullptr, fi_rx_addr(to, at, Contexts::kBits),
                        &context) == 0);
        CHECK(next_of(here.tx_cq[from]).op_context == &context);
        fi_addr_t source = FI_ADDR_NOTAVAIL;
        const auto got = next_of(there.rx_cq[at], &source);
        CHECK(got.op_context == &context);
        CHECK(std::string(landing.data(), got.len) == text);
        CHECK(source == back);
      }
  }
}

TEST_CASE("a receive context may come after its transmit context is enabled, as in MPICH, or never") {
  Node node;
  Hints hints;
  hints.ep.tx_ctx_cnt = hints.ep.rx_ctx_cnt = 1;
  const InfoPtr info = info_for(hints);
  fid_ep *whole = nullptr, *tx = nullptr, *rx = nullptr;
  REQUIRE(fi_scalable_ep(node.domain, info.get(), &whole, nullptr) == 0);
  REQUIRE(fi_scalable_ep_bind(whole, &node.av->fid, 0) == 0);
  REQUIRE(fi_enable(whole) == 0);
  REQUIRE(fi_tx_context(whole, 0, nullptr, &tx, nullptr) == 0);
  REQUIRE(fi_ep_bind(tx, &node.cq->fid, FI_TRANSMIT) == 0);
  REQUIRE(fi_enable(tx) == 0);
  const fi_addr_t to = node.insert(node);
  char byte = 0;
  SUBCASE("it comes") {
    REQUIRE(fi_rx_context(whole, 0, nullptr, &rx, nullptr) == 0);
    REQUIRE(fi_ep_bind(rx, &node.cq->fid, FI_RECV) == 0);
    CHECK(fi_send(tx, "x", 1, nullptr, to, nullptr) == -FI_EOPBADSTATE);
    REQUIRE(fi_enable(rx) == 0);
  }
  SUBCASE("it is not there when the name is read") {
    CHECK_FALSE(name_of(whole).empty());
    CHECK(fi_rx_context(whole, 0, nullptr, &rx, nullptr) == -FI_EBUSY);
  }
  SUBCASE("it never comes") {}
  REQUIRE(fi_recv(node.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
  REQUIRE(fi_send(tx, "x", 1, nullptr, to, nullptr) == 0);
  node.entry();
  node.entry();
  CHECK(byte == 'x');
  CHECK(fi_close(&tx->fid) == 0);
  if (rx) CHECK(fi_close(&rx->fid) == 0);
  CHECK(fi_close(&whole->fid) == 0);
}

TEST_CASE("a side that closes ends its context, and no other") {
  Contexts here;
  const Contexts there;
  const fi_addr_t to = here.insert(there);
  there.insert(here);
  char byte = 0;
  REQUIRE(fi_recv(here.rx[1], &byte, 1, nullptr, FI_ADDR_UNSPEC, &byte) == 0);
  CHECK(fi_close(&here.tx[1]->fid) == 0);
  here.tx[1] = nullptr;
  fi_cq_tagged_entry none{};
  CHECK(fi_cq_sread(here.rx_cq[1], &none, 1, nullptr, 20000) == -FI_EAVAIL);
  CHECK(fi_recv(here.rx[1], &byte, 1, nullptr, FI_ADDR_UNSPEC, &byte) < 0);
  fid_ep* more = nullptr;
  CHECK(fi_tx_context(here.whole, 1, nullptr, &more, nullptr) == -FI_EBUSY);
  REQUIRE(fi_recv(there.rx[0], &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
  REQUIRE(fi_send(here.tx[0], "x", 1, nullptr, to, nullptr) == 0);
  next_of(there.rx_cq[0]);
  CHECK(byte == 'x');
}

TEST_CASE("processes that open an address vector by its name see what one of them inserts") {
  const std::string name = "provider test " + std::to_string(::getpid());
  Node writer, reader, peer;
  const auto open = [&](Node& node, std::uint64_t flags, fi_av_attr& attr, fid_av*& av) {
    attr = {};
    attr.name = name.c_str();
    attr.flags = flags;
    return fi_av_open(node.domain, &attr, &av, nullptr);
  };
  fi_av_attr written{}, read{};
  fid_av *ours = nullptr, *theirs = nullptr;
  CHECK(open(reader, FI_READ, read, theirs) == -FI_ENOENT);
  REQUIRE(open(writer, 0, written, ours) == 0);
  REQUIRE(open(reader, FI_READ, read, theirs) == 0);
  const std::string address = peer.name();
  fi_addr_t handle = FI_ADDR_NOTAVAIL;
  CHECK(fi_av_insert(theirs, address.data(), 1, &handle, 0, nullptr) < 1);
  REQUIRE(fi_av_insert(ours, address.data(), 1, &handle, 0, nullptr) == 1);
  CHECK(static_cast<const fi_addr_t*>(written.map_addr)[0] == handle);
  CHECK(static_cast<const fi_addr_t*>(read.map_addr)[0] == handle);
  std::string found(address.size(), '\0');
  std::size_t length = found.size();
  CHECK(fi_av_lookup(theirs, handle, found.data(), &length) == 0);
  CHECK(found == address);
  for (fid_av* const each : {ours, theirs}) CHECK(fi_close(&each->fid) == 0);
}
