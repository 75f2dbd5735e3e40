#pragma once

#include <span>

#include "libfabric/endpoint/arguments.h"

// Messages with and without tags (fi_msg(3), fi_tagged(3)).
namespace fab::fi {

struct Message {
  std::span<const iovec> pieces{};
  fi_addr_t peer = FI_ADDR_UNSPEC;
  void* context = nullptr;
  std::uint64_t data = 0;
  bool tagged = false;
  std::uint64_t tag = 0, ignore = 0;
  bool silent = false;
};

ssize_t send(Endpoint& endpoint, const Message& message, std::uint64_t flags);
ssize_t receive(Endpoint& endpoint, const Message& message, std::uint64_t flags);

}  // namespace fab::fi
