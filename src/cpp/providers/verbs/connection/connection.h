#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/network/tcp_socket.h"
#include "fabric/session/frames/hello.h"
#include "fabric/types/error.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/connection/queue_pair_end.h"
#include "providers/verbs/connection/transport_options.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

class SharedReceives;

// What a caller says before there is a connection: the private data of rdma_cm.
struct PrivateData {
  enum class Purpose : std::uint8_t {
    stream = 1,  // the connection carries frames
    memory = 2,  // the caller's device reaches memory of the called side; `token` names the stream
  };
  static constexpr std::size_t kBytes = 32;
  Purpose purpose = Purpose::stream;
  EndpointId to{};
  std::uint64_t token = 0;

  void encode(char* out) const noexcept;
  // Ignores bytes after the first kBytes, because InfiniBand pads.
  static std::optional<PrivateData> decode(std::string_view bytes) noexcept;
};

// A queue pair and its rdma_cm connection. Neither calling nor ending waits. The owner is told of events
// under the context's lock, and may destroy the connection there.
class Connection final {
 public:
  // What the connections of an endpoint share. It must outlive them.
  struct Services {
    const Device& device;
    rdma_event_channel& events;
    DeviceCompletionQueue& completions;
    EndpointEvents& device_events;
    QueuePairEnds& queue_pair_ends;
    const TransportOptions& transport;
  };
  struct Depth {
    std::uint32_t sends, receives, inline_bytes;
    ibv_pd& protection_domain;
    // Where messages arrive. If it is null, the queue pair has receives of its own.
    SharedReceives* shared_receives = nullptr;
  };

  // Tells `owner` of the connection, and of the completions whose ids work_id() made.
  Connection(const Services& services, ConnectionOwner& owner, const Depth& depth);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // These return false if they failed at once; the owner is not told then.
  bool call(const SocketAddress& from, const SocketAddress& to, const PrivateData& data) noexcept;
  bool answer(OwnId id, const rdma_conn_param& asked) noexcept;

  bool connected() const noexcept { return connected_; }
  ibv_qp* queue_pair() const noexcept { return id_->qp; }
  std::uint32_t inline_bytes() const noexcept { return inline_bytes_; }
  // The id of a work request. Only 31 bits of `number` are kept.
  std::uint64_t work_id(std::uint32_t number, bool receive) const noexcept {
    return work_id(work_number_, number, receive);
  }
  static std::uint64_t work_id(std::uint32_t work_number, std::uint32_t number, bool receive) noexcept {
    return (std::uint64_t{work_number} << 32) | (receive ? 1u << 31 : 0) | (number & 0x7FFFFFFF);
  }
  static std::uint32_t number_of(const ibv_wc& completion) noexcept {
    return static_cast<std::uint32_t>(completion.wr_id) & 0x7FFFFFFF;
  }
  static bool is_receive(const ibv_wc& completion) noexcept { return (completion.wr_id >> 31 & 1) != 0; }

  std::uint32_t work_number() const noexcept { return work_number_; }
  // To be called by the endpoint.
  void on_event(rdma_cm_event_type type) noexcept;

 private:
  void set_options(rdma_cm_id& id) const noexcept;
  bool make_queue_pair() noexcept;
  bool begin_connect() noexcept;

  const Services& services_;
  ConnectionOwner& owner_;
  const Depth depth_;
  OwnId id_;
  std::unique_ptr<QueuePairEnd> end_;  // takes id_
  std::uint32_t work_number_ = 0;
  std::uint32_t inline_bytes_ = 0;
  bool calling_ = false, connected_ = false;
  char private_data_[PrivateData::kBytes];
};

}  // namespace fab::verbs
