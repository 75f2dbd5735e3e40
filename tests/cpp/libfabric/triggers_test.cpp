// Operations that wait for a counter (fi_trigger(3)), and endpoints under another name (fi_ep_alias(3)).

#include <doctest/doctest.h>
#include <rdma/fi_trigger.h>

#include <array>
#include <vector>

#include "libfabric/node.h"

using namespace fab::test;

namespace {

fi_triggered_context when(fid_cntr* counter, std::size_t threshold) {
  fi_triggered_context wish{};
  wish.event_type = FI_TRIGGER_THRESHOLD;
  wish.trigger.threshold = {.cntr = counter, .threshold = threshold};
  return wish;
}

// An endpoint, another name of it whose calls wait, and memory at a peer.
struct Waiting {
  Node here, there;
  fid_cntr* counter = here.counter();
  fi_addr_t to = here.insert(there);
  std::vector<char> memory = std::vector<char>(64);
  Region region{there, memory.data(), memory.size(), 7};
  fid_ep* alias = nullptr;
  Waiting() { REQUIRE(fi_ep_alias(here.ep, &alias, FI_TRANSMIT | FI_TRIGGER) == 0); }
  ~Waiting() {
    if (alias) CHECK(fi_close(&alias->fid) == 0);
  }
};

}  // namespace

TEST_CASE("a put begins when its counter has come so far, in whatever order the program has asked") {
  Waiting w;
  const std::array<char, 2> out{'a', 'b'};
  auto late = when(w.counter, 2), soon = when(w.counter, 1);
  CHECK(fi_write(w.alias, &out[0], 1, nullptr, w.to, 0, 7, &late) == 0);
  CHECK(fi_write(w.alias, &out[1], 1, nullptr, w.to, 1, 7, &soon) == 0);
  CHECK(w.here.silent());
  CHECK(fi_cntr_add(w.counter, 1) == 0);
  CHECK(w.here.entry().op_context == &soon);
  CHECK(w.memory[1] == 'b');
  CHECK(w.memory[0] == 0);
  CHECK(w.here.silent());
  CHECK(fi_cntr_add(w.counter, 1) == 0);
  CHECK(w.here.entry().op_context == &late);
  CHECK(w.memory[0] == 'a');
}

TEST_CASE("a counter that has come so far begins at once; the endpoint itself does not wait") {
  Waiting w;
  const char out = 'a';
  CHECK(fi_cntr_set(w.counter, 5) == 0);
  auto soon = when(w.counter, 5);
  CHECK(fi_send(w.alias, &out, 1, nullptr, w.to, &soon) == 0);
  char in = 0;
  CHECK(fi_recv(w.there.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
  w.there.entry();
  CHECK(in == 'a');
  CHECK(w.here.entry().op_context == &soon);
  CHECK(fi_write(w.here.ep, &out, 1, nullptr, w.to, 0, 7, nullptr) == 0);
  w.here.entry();
  CHECK(w.memory[0] == 'a');
}

TEST_CASE("what FI_INJECT names may change at once, also what an atomic compares with") {
  Waiting w;
  alignas(8) std::array<std::uint64_t, 1> target{5};
  const Region counted(w.there, target.data(), sizeof target, 8);
  std::uint64_t operand = 6, expected = 5, found = 0;
  fi_ioc given{&operand, 1}, compared{&expected, 1}, result{&found, 1};
  fi_rma_ioc at{.addr = 0, .count = 1, .key = 8};
  auto soon = when(w.counter, 1);
  fi_msg_atomic msg{};
  msg.msg_iov = &given;
  msg.iov_count = 1;
  msg.addr = w.to;
  msg.rma_iov = &at;
  msg.rma_iov_count = 1;
  msg.datatype = FI_UINT64;
  msg.op = FI_CSWAP;
  msg.context = &soon;
  REQUIRE(fi_compare_atomicmsg(w.here.ep, &msg, &compared, nullptr, 1, &result, nullptr, 1,
                               FI_INJECT | FI_TRIGGER | FI_COMPLETION) == 0);
  operand = expected = 0;
  CHECK(fi_cntr_add(w.counter, 1) == 0);
  CHECK(w.here.entry().op_context == &soon);
  CHECK(found == 5);
  CHECK(target[0] == 6);
}

TEST_CASE("what can never be done fails when it begins, and what is no wish is refused at once") {
  Waiting w;
  const char out = 'a';
  auto soon = when(w.counter, 1);
  CHECK(fi_write(w.alias, &out, 1, nullptr, w.to, 0, 8, &soon) == 0);  // no such key
  CHECK(fi_cntr_add(w.counter, 1) == 0);
  CHECK(w.here.error().err == FI_EKEYREJECTED);
  CHECK(fi_write(w.alias, &out, 1, nullptr, w.to, 0, 7, nullptr) == -FI_EINVAL);
  auto other = soon;
  other.trigger.threshold.cntr = nullptr;
  CHECK(fi_write(w.alias, &out, 1, nullptr, w.to, 0, 7, &other) == -FI_EINVAL);
  CHECK(w.here.silent());
}

TEST_CASE("a name closes before its endpoint, and what waits ends with it") {
  Waiting w;
  const char out = 'a';
  auto never = when(w.counter, 100);
  CHECK(fi_write(w.alias, &out, 1, nullptr, w.to, 0, 7, &never) == 0);
  CHECK(fi_close(&w.here.ep->fid) == -FI_EBUSY);
  CHECK(fi_close(&w.counter->fid) == -FI_EBUSY);
  CHECK(fi_close(&w.alias->fid) == 0);
  w.alias = nullptr;
  CHECK(fi_cntr_add(w.counter, 100) == 0);
  CHECK(w.here.silent());
  CHECK(w.memory[0] == 0);
}
