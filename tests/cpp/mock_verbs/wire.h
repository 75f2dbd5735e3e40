#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

// What the two sides of a connection say on their socket. Both are processes of one host, with one build.
namespace mock {

enum class Kind : std::uint8_t { call, accept, reject, ready, disconnect, request, answer, join };

constexpr std::size_t kPrivateBytes = 56;  // of a call over RDMA_PS_TCP, padded with zeros as on InfiniBand

// Follows the header of a call, of an acceptance and of a rejection.
struct CallBody {
  sockaddr_storage from;
  std::uint32_t queue_pair;
  std::uint8_t responder_resources, initiator_depth, not_ready_retries, reserved;
  char said[kPrivateBytes];
};

// Follows the header of what two queue pairs say to each other that their programs have connected.
struct JoinBody {
  std::uint32_t from, to;            // numbers of queue pairs
  std::uint32_t sends_at, takes_at;  // numbers of the first packets
  std::uint8_t mtu, serves, not_ready_retries, reserved;
};

struct Header {
  Kind kind;
  std::uint8_t opcode = 0;  // ibv_wr_opcode, of a request
  std::uint8_t status = 0;  // ibv_wc_status, of an answer
  std::uint8_t solicited = 0;
  std::uint32_t bytes = 0;   // that follow
  std::uint32_t length = 0;  // asked of a read
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;
  std::uint32_t reserved = 0;
  std::uint64_t address = 0;
  std::uint64_t compare = 0, swap = 0;  // `compare` is the addend of a fetch-and-add
};

}  // namespace mock
