#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/network/tcp_socket.h"
#include "fabric/session/frames/hello.h"
#include "fabric/types/error.h"
#include "providers/verbs/connection/destroyed_later.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

class SharedReceives;

// What a call says before there is a connection: rdma_cm's private data.
struct PrivateData {
  enum class Purpose : std::uint8_t {
    stream = 1,  // for frames
    memory = 2,  // for the caller's device, which reaches memory of the called one; `token` is the stream's
  };
  static constexpr std::size_t kBytes = 32;
  Purpose purpose = Purpose::stream;
  EndpointId to{};
  std::uint64_t token = 0;

  void encode(char* out) const noexcept;
  static std::optional<PrivateData> decode(
      std::string_view bytes) noexcept;  // more may follow: InfiniBand pads
};

// A queue pair with the connection that it comes by. Calls and ends without waiting; its owner is told under
// the context's lock, and may destroy it there.
class Connection final {
 public:
  // What the connections of an endpoint have in common; outlives them.
  struct Services {
    const Device& device;
    rdma_event_channel& events;
    DeviceCompletionQueue& completions;
    DestroyedLaterList& destroyed_later;
  };
  struct Depth {
    std::uint32_t sends, receives, inline_bytes;
    ibv_pd& protection_domain;
    SharedReceives* shared_receives = nullptr;  // where messages arrive, instead of in receives of its own
  };

  // `owner` is told of the connection, and of completions whose ids work_id() made.
  Connection(const Services& services, ConnectionOwner& owner, const Depth& depth);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False: it failed at once, and the owner is not told.
  bool call(const SocketAddress& from, const SocketAddress& to, const PrivateData& data) noexcept;
  bool answer(OwnId id, const rdma_conn_param& asked) noexcept;

  bool connected() const noexcept { return connected_; }
  ibv_qp* queue_pair() const noexcept { return id_->qp; }
  std::uint32_t inline_bytes() const noexcept { return inline_bytes_; }
  // The id of a work request with `number`, of 31 bits.
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
  void on_event(rdma_cm_event_type type) noexcept;  // for the endpoint

 private:
  bool make_queue_pair() noexcept;
  bool begin_connect() noexcept;

  const Services& services_;
  ConnectionOwner& owner_;
  const Depth depth_;
  struct LateId final : DestroyedLater {
    OwnId id;
  };
  OwnId id_;
  std::shared_ptr<LateId> late_id_;  // where it goes at the end, if it has to outlive this
  std::uint32_t work_number_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t room_ = 0;  // taken in the completion queue
  bool calling_ = false, connected_ = false;
  char private_data_[PrivateData::kBytes];
};

}  // namespace fab::verbs
