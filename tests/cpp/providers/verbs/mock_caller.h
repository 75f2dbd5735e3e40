#pragma once

#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto/key_pair.h"
#include "fabric/session/frames/handshake.h"
#include "providers/verbs/connection/private_data.h"
#include "providers/verbs/mock_node.h"

namespace fab::test {

// A caller that is spoken for by hand, with a queue pair of its own.
class MockCaller {
 public:
  static constexpr int kFrames = 0, kHandshake = 1;  // kinds of messages
  static constexpr std::size_t kHeader = 8, kSlotBytes = 16 * 1024, kSlots = 16;

  explicit MockCaller(const MockNode& to) : called_(*EndpointAddress::parse(to.context->parts()[0].bytes)) {
    identity.keys = &keys_;
    identity.take_id(KeyPair::make(), "verbs.0", 0, EndpointId{0, 0, 0, 1});
    identity.part.bytes = EndpointAddress{.id = identity.id,
                                          .kind = identity.kind,
                                          .network = this_network(),
                                          .addresses = {called_.addresses.front()}}
                              .encode();
    REQUIRE(rdma_create_id(channel_.get(), &id_, nullptr, RDMA_PS_TCP) == 0);
  }
  ~MockCaller() {
    rdma_disconnect(id_);
    if (id_->qp) rdma_destroy_qp(id_);
    rdma_destroy_id(id_);
    if (memory_region_) ibv_dereg_mr(memory_region_);
    if (completions_) ibv_destroy_cq(completions_);
    if (domain_) ibv_dealloc_pd(domain_);
  }
  MockCaller(const MockCaller&) = delete;
  MockCaller& operator=(const MockCaller&) = delete;

  const EndpointAddress& called() const { return called_; }

  // What rdma_cm tells next. A refusal is kept.
  rdma_cm_event_type next() {
    pollfd ready{channel_->fd, POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 60'000) == 1);
    rdma_cm_event* event = nullptr;
    REQUIRE(rdma_get_cm_event(channel_.get(), &event) == 0);
    const rdma_cm_event_type type = event->event;
    if (type == RDMA_CM_EVENT_REJECTED)
      refusal = verbs::Refusal::decode(
          {static_cast<const char*>(event->param.conn.private_data), event->param.conn.private_data_len});
    rdma_ack_cm_event(event);
    return type;
  }

  // Calls with these private data; what the called side answers.
  rdma_cm_event_type call(const std::string& data) {
    const SocketAddress from = called_.addresses.front().with_port(0), to = called_.addresses.front();
    REQUIRE(rdma_resolve_addr(id_, const_cast<sockaddr*>(from.get()), const_cast<sockaddr*>(to.get()),
                              1000) == 0);
    REQUIRE(next() == RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id_, 1000) == 0);
    REQUIRE(next() == RDMA_CM_EVENT_ROUTE_RESOLVED);
    domain_ = ibv_alloc_pd(id_->verbs);
    completions_ = ibv_create_cq(id_->verbs, 256, nullptr, nullptr, 0);
    const int access = IBV_ACCESS_LOCAL_WRITE;  // the macro takes no constant well
    memory_region_ = ibv_reg_mr(domain_, memory_.data(), memory_.size(), access);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions_;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = kSlots,
                  .max_recv_wr = kSlots,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    REQUIRE(rdma_create_qp(id_, domain_, &wanted) == 0);
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      ibv_sge place = place_of(slot, kSlotBytes);
      ibv_recv_wr request{}, *bad = nullptr;
      request.wr_id = slot;
      request.sg_list = &place;
      request.num_sge = 1;
      REQUIRE(ibv_post_recv(id_->qp, &request, &bad) == 0);
    }
    rdma_conn_param asked{};
    asked.private_data = data.data();
    asked.private_data_len = static_cast<std::uint8_t>(data.size());
    asked.responder_resources = asked.initiator_depth = 1;
    REQUIRE(rdma_connect(id_, &asked) == 0);
    return next();
  }
  rdma_cm_event_type call(const verbs::PrivateData& data) {
    std::string bytes(verbs::PrivateData::kBytes, '\0');
    data.encode(bytes.data());
    return call(bytes);
  }
  rdma_cm_event_type call() { return call(verbs::PrivateData{.to = called_.id}); }

  void send_raw(const std::string& bytes) {
    std::memcpy(memory_.data() + kSlots * kSlotBytes, bytes.data(), bytes.size());
    ibv_sge place = place_of(kSlots, bytes.size());
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = kSlots;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    REQUIRE(ibv_post_send(id_->qp, &request, &bad) == 0);
    CHECK(completion_of(kSlots).has_value());  // the place is used again
  }
  void send(int kind, const std::string& bytes, std::uint8_t emptied = 0) {
    std::string header(kHeader, '\0');
    header[0] = static_cast<char>(emptied);
    header[4] = static_cast<char>(kind);
    send_raw(header + bytes);
  }
  // The next message without its header; empty: the connection has ended.
  std::string hear() {
    const std::optional<ibv_wc> arrived = completion_of(heard_++);
    if (!arrived || arrived->byte_len < kHeader) return {};
    return {memory_.data() + (heard_ - 1) * kSlotBytes + kHeader, arrived->byte_len - kHeader};
  }
  // The whole handshake.
  Errc shake() {
    CallerHandshake caller(identity, 0, called_, 7);
    send(kHandshake, caller.hello());
    while (!caller.done()) {
      const std::string message = hear();
      if (message.empty()) return Errc::peer_lost;
      const auto step = caller.receive(message);
      if (step.error != Errc::ok) return step.error;
      if (!step.answer.empty()) send(kHandshake, step.answer);
    }
    return Errc::ok;
  }

  Identity identity;
  std::optional<verbs::Refusal> refusal{};

 private:
  ibv_sge place_of(std::size_t slot, std::size_t length) {
    return {.addr = reinterpret_cast<std::uint64_t>(memory_.data() + slot * kSlotBytes),
            .length = static_cast<std::uint32_t>(length),
            .lkey = memory_region_->lkey};
  }
  // Of the request with this number; nothing: it has failed. Others may come before.
  std::optional<ibv_wc> completion_of(std::size_t number) {
    REQUIRE(soon([&] {
      ibv_wc one{};
      while (ibv_poll_cq(completions_, 1, &one) == 1) done_.push_back(one);
      return std::ranges::find(done_, number, &ibv_wc::wr_id) != done_.end();
    }));
    const auto found = std::ranges::find(done_, number, &ibv_wc::wr_id);
    const ibv_wc completion = *found;
    done_.erase(found);
    if (completion.status != IBV_WC_SUCCESS) return {};
    return completion;
  }

  AuthKeys keys_{1};
  const EndpointAddress called_;
  std::unique_ptr<rdma_event_channel, decltype(&::rdma_destroy_event_channel)> channel_{
      rdma_create_event_channel(), ::rdma_destroy_event_channel};
  rdma_cm_id* id_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_mr* memory_region_ = nullptr;
  std::vector<char> memory_ = std::vector<char>((kSlots + 1) * kSlotBytes);
  std::vector<ibv_wc> done_;
  std::size_t heard_ = 0;
};

}  // namespace fab::test
