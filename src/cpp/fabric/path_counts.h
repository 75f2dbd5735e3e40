#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "fabric/types/error.h"
#include "fabric/types/types.h"

namespace fab {

// What a path did since it was opened. One set for each path: whatever carries its transfers counts in it.
struct PathCounts {
  std::uint64_t posted = 0, settled = 0;
  std::uint64_t bytes_out = 0, bytes_in = 0, errors = 0;

  // A transfer that was counted as posted has this outcome.
  void settle(OpCode op, std::uint64_t length, Errc outcome) noexcept {
    ++settled;
    if (outcome != Errc::ok) {
      ++errors;
      return;
    }
    const bool fetches = op == OpCode::fetch_atomic || op == OpCode::compare_atomic;
    if (op == OpCode::write || op == OpCode::send || is_atomic(op)) bytes_out += length;
    if (op == OpCode::read || op == OpCode::receive || fetches) bytes_in += length;
  }
  // Transfers were posted after the path had ended.
  void refuse(std::span<const Transfer> transfers) noexcept {
    for (const Transfer& transfer : transfers) {
      if (transfer.op == OpCode::control) continue;  // posted by no user
      ++posted;
      settle(transfer.op, 0, Errc::peer_lost);
    }
  }
  // `post` hands a transfer that was counted before, under `number`, to somebody who counts it. It keeps its
  // number, and counts once.
  template <class Post>
  auto repost(std::uint64_t number, Post post) noexcept {
    const std::uint64_t before = std::exchange(posted, number - 1);
    const auto result = post();
    posted = before;
    return result;
  }
};

}  // namespace fab
