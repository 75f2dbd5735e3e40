// The provider for libfabric keeps the rules of libfabric's manual pages, where fabtests do not look: what is
// refused, what entries tell, and who may close first.

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>

#include "base/network/interfaces.h"
#include "libfabric/node.h"

using namespace fab::test;

namespace {

// A receive from anybody into one piece of memory, which is not copied.
template <class Message>
Message receive_of(const iovec& piece, void* context) {
  Message wanted{};
  wanted.msg_iov = &piece;
  wanted.iov_count = 1;
  wanted.addr = FI_ADDR_UNSPEC;
  wanted.context = context;
  return wanted;
}

}  // namespace

TEST_CASE("fi_getinfo offers what was asked for, and refuses what it does not know") {
  Hints hints;
  hints.info.caps = FI_TAGGED;
  const InfoPtr info = info_for(hints);
  REQUIRE(info);
  CHECK((info->caps & (FI_TAGGED | FI_SEND | FI_RECV)) == (FI_TAGGED | FI_SEND | FI_RECV));
  CHECK((info->caps & (FI_RMA | FI_MSG | FI_ATOMIC)) == 0);
  CHECK(info->domain_attr->mr_mode == 0);
  CHECK(std::string(info->domain_attr->name) == "shm");

  const auto refused = [](auto&& change) {
    Hints other;
    change(other);
    return info_for(other) == nullptr;
  };
  CHECK(refused([](Hints& h) { h.info.caps = FI_MSG | FI_COLLECTIVE; }));
  CHECK(refused([](Hints& h) { h.info.caps = FI_MSG | 1ULL << 44; }));
  CHECK(refused([](Hints& h) { h.ep.type = FI_EP_MSG; }));
  CHECK(refused([](Hints& h) { h.tx.msg_order = FI_ORDER_SAW; }));
  CHECK(refused([](Hints& h) { h.tx.inject_size = 1 << 20; }));
  CHECK(refused([](Hints& h) { h.ep.rx_ctx_cnt = FI_SHARED_CONTEXT; }));
  CHECK(refused([](Hints& h) { h.ep.tx_ctx_cnt = 17; }));
  CHECK_FALSE(refused([](Hints& h) { h.domain.mr_mode = FI_MR_BASIC; }));
}

TEST_CASE("a domain over several devices of one provider is called what the user has written, and opens") {
  std::string other;
  for (const fab::Interface& interface : fab::list_interfaces())
    if (interface.up && !interface.loopback && !interface.addresses.empty()) other = interface.name;
  if (other.empty()) return;  // this machine has the loopback alone
  for (const std::string& links : {"tcp:lo," + other, "shm+tcp:lo," + other}) {
    const Links over(links.c_str());
    const InfoPtr info = info_for(Hints());
    REQUIRE(info);
    CHECK(info->domain_attr->name == links);
    Node here, there;
    const std::array<char, 4> out{'a', 'b', 'c', 'd'};
    std::array<char, 4> in{};
    CHECK(fi_recv(there.ep, in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
    CHECK(fi_send(here.ep, out.data(), out.size(), nullptr, here.insert(there), nullptr) == 0);
    there.entry();
    here.entry();
    CHECK(in == out);
  }
}

TEST_CASE("what is in use cannot be closed, and what lacks a part cannot be enabled") {
  Node node;
  CHECK(fi_close(&node.fabric->fid) == -FI_EBUSY);
  CHECK(fi_close(&node.domain->fid) == -FI_EBUSY);
  CHECK(fi_close(&node.cq->fid) == -FI_EBUSY);
  CHECK(fi_close(&node.av->fid) == -FI_EBUSY);
  fid_ep* other = nullptr;
  REQUIRE(fi_endpoint(node.domain, info_for(Hints()).get(), &other, nullptr) == 0);
  char byte = 0;
  CHECK(fi_send(other, &byte, 1, nullptr, 0, nullptr) == -FI_EOPBADSTATE);
  std::size_t length = 0;
  CHECK(fi_getname(&other->fid, nullptr, &length) == -FI_EOPBADSTATE);
  CHECK(fi_enable(other) == -FI_ENOAV);
  CHECK(fi_ep_bind(other, &node.av->fid, 0) == 0);
  CHECK(fi_enable(other) == -FI_ENOCQ);
  CHECK(fi_close(&other->fid) == 0);
}

TEST_CASE("names have one length, and come back from the address vector") {
  Node here, there;
  CHECK(here.name().size() == 56);
  CHECK(there.name().size() == 56);
  const fi_addr_t peer = here.insert(there);
  std::string found(here.name().size(), '\0');
  std::size_t length = found.size();
  CHECK(fi_av_lookup(here.av, peer, found.data(), &length) == 0);
  CHECK(length == found.size());
  CHECK(found == there.name());
  const std::string nonsense(length, 'x');
  fi_addr_t none = 0;
  CHECK(fi_av_insert(here.av, nonsense.data(), 1, &none, 0, nullptr) < 1);
  CHECK(fi_av_insert(here.av, nullptr, 1, &none, 0, nullptr) == -FI_EINVAL);
}

TEST_CASE("a message tells its source, its data and the buffer; one that is too long what is missing") {
  Node here, there;
  const fi_addr_t to = here.insert(there), back = there.insert(here);
  std::array<char, 8> landing{};
  int context = 0;
  REQUIRE(fi_recv(there.ep, landing.data(), 4, nullptr, FI_ADDR_UNSPEC, &context) == 0);
  REQUIRE(fi_senddata(here.ep, "abc", 3, nullptr, 77, to, nullptr) == 0);
  fi_addr_t from = FI_ADDR_NOTAVAIL;
  const auto got = there.entry(&from);
  CHECK(from == back);
  CHECK(got.op_context == &context);
  CHECK(got.buf == landing.data());
  CHECK(got.len == 3);
  CHECK(got.data == 77);
  CHECK(got.flags == (FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA));
  CHECK(here.entry().flags == (FI_SEND | FI_MSG));

  REQUIRE(fi_recv(there.ep, landing.data(), 4, nullptr, FI_ADDR_UNSPEC, &context) == 0);
  REQUIRE(fi_send(here.ep, "abcdefg", 7, nullptr, to, nullptr) == 0);
  const auto cut = there.error();
  CHECK(cut.err == FI_ETRUNC);
  CHECK(cut.op_context == &context);
  CHECK(cut.olen == 3);
}

TEST_CASE("a message that was taken has been sent, though its receiver closes at once") {
  for (const char* const links : {"shm", "tcp:lo", "shm+tcp:lo"}) {
    CAPTURE(links);
    const Links over(links);
    for (int round = 0; round < 30; ++round) {
      Node here;
      {
        Node there;
        const fi_addr_t to = here.insert(there);
        char landing = 0;
        REQUIRE(fi_recv(there.ep, &landing, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
        REQUIRE(fi_send(here.ep, "x", 1, nullptr, to, nullptr) == 0);
        there.entry();
      }
      CHECK(here.entry().flags == (FI_SEND | FI_MSG));
    }
  }
}

TEST_CASE("a receive for several messages tells where each lies, and at last that the buffer is free") {
  Node here, there;
  const fi_addr_t to = here.insert(there);
  there.insert(here);
  std::size_t least = 4;
  REQUIRE(fi_setopt(&there.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least) == 0);
  std::array<char, 16> landing{};
  const iovec piece{landing.data(), landing.size()};
  int context = 0;
  const auto many = receive_of<fi_msg>(piece, &context);
  REQUIRE(fi_recvmsg(there.ep, &many, FI_MULTI_RECV) == 0);
  for (const char* const text : {"first!", "second!"})
    REQUIRE(fi_inject(here.ep, text, std::strlen(text), to) == 0);
  const auto first = there.entry();
  CHECK(first.buf == landing.data());
  CHECK(first.op_context == &context);
  const auto second = there.entry();
  CHECK(second.buf == landing.data() + 6);
  CHECK(std::memcmp(second.buf, "second!", 7) == 0);
  const auto last = there.entry();
  CHECK(last.flags == FI_MULTI_RECV);
  CHECK(last.op_context == &context);
  // Another one is taken back before its first message.
  REQUIRE(fi_recvmsg(there.ep, &many, FI_MULTI_RECV) == 0);
  CHECK(fi_cancel(&there.ep->fid, &context) == 0);
  CHECK(there.error().err == FI_ECANCELED);
  CHECK(fi_cancel(&there.ep->fid, &context) == -FI_ENOENT);
}

TEST_CASE("where entries are chosen, success is silent and an error is not") {
  Node here(FI_SELECTIVE_COMPLETION), there;
  const fi_addr_t to = here.insert(there);
  std::array<char, 64> memory{};
  const Region region(there, memory.data(), memory.size(), 5);
  REQUIRE(fi_write(here.ep, "seen", 4, nullptr, to, 8, 5, nullptr) == 0);
  int context = 0;
  REQUIRE(fi_write(here.ep, "lost", 4, nullptr, to, 8, 6, &context) == 0);
  const auto refused = here.error();
  CHECK(refused.err == FI_EKEYREJECTED);
  CHECK(refused.op_context == &context);
  CHECK(refused.flags == (FI_RMA | FI_WRITE));
  CHECK(here.silent());
  CHECK(std::memcmp(memory.data() + 8, "seen", 4) == 0);
  CHECK(fi_write(here.ep, "none", 4, nullptr, 99, 8, 5, nullptr) == -FI_EINVAL);
}

TEST_CASE("the end of a buffer for several messages is told where entries are chosen, and takes no place") {
  Node here, there(FI_SELECTIVE_COMPLETION);
  there.insert(here);
  std::array<char, 16> landing{};
  const iovec piece{landing.data(), landing.size()};
  const auto many = receive_of<fi_msg>(piece, landing.data());
  for (int round = 0; round < 3; ++round) {
    REQUIRE(fi_recvmsg(there.ep, &many, FI_MULTI_RECV) == 0);
    CHECK(fi_cancel(&there.ep->fid, landing.data()) == 0);
    CHECK(there.error().err == FI_ECANCELED);
  }
  REQUIRE(fi_recvmsg(there.ep, &many, FI_COMPLETION) == 0);
}

TEST_CASE("an authorization key is the domain's") {
  std::array<std::uint8_t, 4> key{1, 2, 3, 4};
  Hints of_endpoint;
  of_endpoint.ep.auth_key = key.data();
  of_endpoint.ep.auth_key_size = key.size();
  CHECK_FALSE(info_for(of_endpoint));
  Hints of_vector;
  of_vector.domain.auth_key_size = ~std::size_t{0};
  CHECK_FALSE(info_for(of_vector));

  Hints hints;
  hints.domain.auth_key = key.data();
  hints.domain.auth_key_size = key.size();
  const InfoPtr info = info_for(hints);
  REQUIRE(info);
  CHECK(info->domain_attr->auth_key_size == key.size());
  CHECK(info->domain_attr->auth_key != key.data());
  {
    Node has(0, hints), knows(0, hints), stranger;
    REQUIRE(fi_send(knows.ep, "in", 2, nullptr, knows.insert(has), nullptr) == 0);
    CHECK(knows.entry().flags == (FI_SEND | FI_MSG));
    CHECK(fi_send(stranger.ep, "out", 3, nullptr, stranger.insert(has), nullptr) == -FI_EKEYREJECTED);
  }
  const Node opened(info);
  info->ep_attr->auth_key_size = key.size();
  info->ep_attr->auth_key = key.data();
  fid_ep* ep = nullptr;
  CHECK(fi_endpoint(opened.domain, info.get(), &ep, nullptr) == -FI_ENOSYS);
  CHECK(fi_scalable_ep(opened.domain, info.get(), &ep, nullptr) == -FI_ENOSYS);
}

TEST_CASE("an endpoint whose level is that of durable memory sends messages, too") {
  Hints hints;
  hints.info.caps = FI_MSG | FI_RMA | FI_RMA_PMEM;
  hints.tx.op_flags = FI_COMMIT_COMPLETE;
  Node here(0, hints), there(0, hints);
  char in = 0;
  REQUIRE(fi_recv(there.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
  REQUIRE(fi_send(here.ep, "a", 1, nullptr, here.insert(there), nullptr) == 0);
  CHECK(here.entry().flags == (FI_SEND | FI_MSG));
  CHECK(in == 'a');
}

TEST_CASE("a claimed message stays while there is no room for the entry of its receive") {
  Node here, there(info_for(Hints()), 0, 1);
  REQUIRE(fi_enable(there.ep) == 0);
  const fi_addr_t to = here.insert(there);
  there.insert(here);
  REQUIRE(fi_tinject(here.ep, "text", 4, to, 7) == 0);
  std::array<char, 4> landing{};
  const iovec piece{landing.data(), landing.size()};
  auto wanted = receive_of<fi_msg_tagged>(piece, landing.data());
  wanted.tag = 7;
  CHECK(fi_trecvmsg(there.ep, &wanted, FI_DISCARD) == -FI_EINVAL);
  int tries = 0;
  do {
    REQUIRE(fi_trecvmsg(there.ep, &wanted, FI_PEEK | FI_CLAIM) == 0);
    fi_cq_tagged_entry found{};
    if (fi_cq_sread(there.cq, &found, 1, nullptr, 20000) == 1) break;
    fi_cq_err_entry none{};
    REQUIRE(fi_cq_readerr(there.cq, &none, 0) == 1);
  } while (++tries < 100000);
  int others = 0;
  while (fi_trecv(there.ep, landing.data(), 4, nullptr, FI_ADDR_UNSPEC, 9, 0, &others) == 0);
  CHECK(fi_trecvmsg(there.ep, &wanted, FI_CLAIM) == -FI_EAGAIN);
  CHECK(fi_trecvmsg(there.ep, &wanted, FI_CLAIM | FI_DISCARD) == -FI_EAGAIN);
  CHECK(fi_cancel(&there.ep->fid, &others) == 0);
  CHECK(there.error().err == FI_ECANCELED);
  REQUIRE(fi_trecvmsg(there.ep, &wanted, FI_CLAIM) == 0);
  CHECK(there.entry().len == 4);
  CHECK(std::memcmp(landing.data(), "text", 4) == 0);
  CHECK(fi_trecvmsg(there.ep, &wanted, FI_CLAIM) == -FI_EINVAL);
}

TEST_CASE("one call moves several pieces to and from several ranges") {
  Node here, there;
  const fi_addr_t to = here.insert(there);
  std::array<char, 64> memory{};
  const Region region(there, memory.data(), memory.size(), 5);
  char first[] = "abc", second[] = "defgh";
  const iovec pieces[] = {{first, 3}, {second, 5}};
  const fi_rma_iov ranges[] = {{10, 4, 5}, {30, 4, 5}};
  fi_msg_rma msg{};
  msg.msg_iov = pieces;
  msg.iov_count = 2;
  msg.addr = to;
  msg.rma_iov = ranges;
  msg.rma_iov_count = 2;
  REQUIRE(fi_writemsg(here.ep, &msg, FI_COMPLETION) == 0);
  CHECK(here.entry().flags == (FI_RMA | FI_WRITE));
  CHECK(std::string(memory.data() + 10, 4) == "abcd");
  CHECK(std::string(memory.data() + 30, 4) == "efgh");
  std::memset(first, 'x', 3);
  std::memset(second, 'x', 5);
  REQUIRE(fi_readmsg(here.ep, &msg, FI_COMPLETION) == 0);
  CHECK(here.entry().flags == (FI_RMA | FI_READ));
  CHECK(std::string(first) + second == "abcdefgh");
  // A range may be shorter than what is moved only if its length is left out.
  msg.rma_iov_count = 1;
  CHECK(fi_writemsg(here.ep, &msg, FI_COMPLETION) == -FI_EINVAL);
  const fi_rma_iov open{40, 0, 5};
  msg.rma_iov = &open;
  REQUIRE(fi_writemsg(here.ep, &msg, FI_COMPLETION) == 0);
  CHECK(here.entry().flags == (FI_RMA | FI_WRITE));
  CHECK(std::string(memory.data() + 40, 8) == "abcdefgh");
  CHECK(fi_readmsg(here.ep, &msg, FI_REMOTE_CQ_DATA) == -FI_EBADFLAGS);
}

TEST_CASE("registrations tell the queue of a domain only if they are asked to") {
  const InfoPtr info = info_for(Hints());
  fid_fabric* fabric = nullptr;
  REQUIRE(provider().fabric(info->fabric_attr, &fabric, nullptr) == 0);
  fid_eq* eq = nullptr;
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  REQUIRE(fi_eq_open(fabric, &attr, &eq, nullptr) == 0);
  for (const std::uint64_t flags : {std::uint64_t{0}, std::uint64_t{FI_REG_MR}}) {
    fid_domain* domain = nullptr;
    REQUIRE(fi_domain(fabric, info.get(), &domain, nullptr) == 0);
    REQUIRE(fi_domain_bind(domain, &eq->fid, flags) == 0);
    std::array<char, 8> memory{};
    fid_mr* mr = nullptr;
    REQUIRE(fi_mr_reg(domain, memory.data(), memory.size(), FI_REMOTE_READ, 0, 5, 0, &mr, nullptr) == 0);
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    const ssize_t got = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
    CHECK(got == (flags ? static_cast<ssize_t>(sizeof entry) : -FI_EAGAIN));
    if (flags) CHECK(event == FI_MR_COMPLETE);
    CHECK(fi_close(&mr->fid) == 0);
    CHECK(fi_close(&domain->fid) == 0);
  }
  CHECK(fi_close(&eq->fid) == 0);
  CHECK(fi_close(&fabric->fid) == 0);
}

TEST_CASE("an atomic of several arrays gives the former values, and one that does not exist is refused") {
  Node here, there;
  const fi_addr_t to = here.insert(there);
  alignas(8) std::array<std::uint64_t, 8> memory{};
  std::iota(memory.begin(), memory.end(), 0U);
  const Region region(there, memory.data(), sizeof memory, 5);
  std::uint64_t operands[] = {10, 20, 30}, head[1]{}, tail[2]{};
  const fi_ioc given{operands, 3};
  fi_ioc found[] = {{head, 1}, {tail, 2}};
  REQUIRE(fi_fetch_atomicv(here.ep, &given, nullptr, 1, found, nullptr, 2, to, 16, 5, FI_UINT64, FI_SUM,
                           nullptr) == 0);
  CHECK(here.entry().flags == (FI_ATOMIC | FI_READ));
  CHECK((head[0] == 2 && tail[0] == 3 && tail[1] == 4));
  CHECK((memory[2] == 12 && memory[3] == 23 && memory[4] == 34));
  CHECK(fi_atomic(here.ep, operands, 1, nullptr, to, 16, 5, FI_FLOAT, FI_BOR, nullptr) == -FI_EOPNOTSUPP);
  CHECK(fi_atomic(here.ep, operands, 1, nullptr, to, 16, 5, FI_LONG_DOUBLE, FI_SUM, nullptr) ==
        -FI_EOPNOTSUPP);
  fi_atomic_attr attr{};
  CHECK(fi_query_atomic(here.domain, FI_UINT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC) == 0);
  CHECK(attr.count * attr.size == 16384);
  CHECK(fi_query_atomic(here.domain, FI_UINT64, FI_CSWAP, &attr, 0) == -FI_EOPNOTSUPP);
}

TEST_CASE("an event queue keeps what the program writes, and tells of insertions") {
  Node node, peer;
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  attr.flags = FI_WRITE;
  fid_eq* eq = nullptr;
  REQUIRE(fi_eq_open(node.fabric, &attr, &eq, nullptr) == 0);
  fid* const known = &eq->fid;
  fid* waited[] = {known};
  CHECK(fi_trywait(node.fabric, waited, 1) == 0);
  fi_eq_entry entry{};
  entry.data = 9;
  CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == sizeof entry);
  CHECK(fi_trywait(node.fabric, waited, 1) == -FI_EAGAIN);
  std::uint32_t event = 99;
  fi_eq_entry read{};
  CHECK(fi_eq_sread(eq, &event, &read, sizeof read, 1000, FI_PEEK) == sizeof read);
  CHECK(fi_eq_read(eq, &event, &read, sizeof read, 0) == sizeof read);
  CHECK((event == FI_NOTIFY && read.data == 9));
  CHECK(fi_eq_read(eq, &event, &read, sizeof read, 0) == -FI_EAGAIN);

  fi_av_attr later{};
  later.flags = FI_EVENT;
  fid_av* av = nullptr;
  REQUIRE(fi_av_open(node.domain, &later, &av, nullptr) == 0);
  REQUIRE(fi_av_bind(av, known, 0) == 0);
  const std::string name = peer.name();
  fi_addr_t handle = FI_ADDR_NOTAVAIL;
  CHECK(fi_av_insert(av, name.data(), 1, &handle, 0, &event) == 0);
  CHECK(fi_eq_sread(eq, &event, &read, sizeof read, 1000, 0) == sizeof read);
  CHECK((event == FI_AV_COMPLETE && read.fid == &av->fid && read.data == 1));
  CHECK(fi_close(known) == -FI_EBUSY);
  CHECK(fi_close(&av->fid) == 0);
  CHECK(fi_close(known) == 0);
}
