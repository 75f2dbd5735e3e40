#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fabric/session/frames/hello.h"

namespace fab::verbs {

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

// What the called side says when it takes no call: the private data of rdma_reject(). Calls that the kernel
// refuses, and those of a called side that went, come back without it.
struct Refusal {
  enum class Why : std::uint8_t {
    busy = 1,    // more callers wait than can be answered soon
    never = 2,   // who is called is not here, or takes nobody any more
    failed = 3,  // the called side lacks something for another connection
  };
  static constexpr std::size_t kBytes = 8;
  Why why = Why::busy;

  void encode(char* out) const noexcept;
  static std::optional<Refusal> decode(std::string_view bytes) noexcept;
};

}  // namespace fab::verbs
