#pragma once

#include <cstdint>
#include <vector>

#include "fabric/completion/operation.h"
#include "fabric/messages/receive_queue.h"

// What tests of outcomes post: each tells whether it was settled once.
namespace fab::test {

// An operation whose second part is settled by who checks that the first one was settled once.
struct Once {
  explicit Once(std::uint32_t flags = completion_flag::kRma) {
    operation.begin({.transfers = 2, .flags = flags});
  }
  Operation operation;
  bool posted = true;

  // Its outcome; `again` if it has none, or more than one.
  Errc outcome() {
    if (!posted) return Errc::no_memory;
    if (operation.done()) return Errc::again;
    operation.settle(Errc::ok, 0);
    return operation.done() ? operation.completion().error : Errc::again;
  }
};

// A receive of tagged messages.
struct Take : Once {
  Take(std::uint64_t tag, std::size_t size)
      : Once(completion_flag::kMessage | completion_flag::kRecv), bytes(size) {
    receive.operation = &operation;
    receive.local = bytes.data();
    receive.length = size;
    receive.rule = {.tag = tag, .tagged = true};
  }
  std::vector<std::byte> bytes;
  Receive receive;
};

}  // namespace fab::test
