#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>

#include "fabric/session/services.h"
#include "providers/shm/layout.h"

namespace fab::shm {

// Either the initiator takes an announced message back, or the target takes it: whoever is first at its cell.
// Each side has an object of its own.
class Announcements final : public AnnouncementLedger {
 public:
  explicit Announcements(AnnouncementCells& cells) noexcept : cells_(cells) {}

  // Numbers are consecutive, but those whose cell is in use are skipped.
  std::uint64_t open() noexcept override {
    while (open_.test(next_ % kMaxOutstanding)) ++next_;
    open_.set(next_ % kMaxOutstanding);
    return next_++;
  }
  void end(std::uint64_t number) noexcept override { open_.reset(number % kMaxOutstanding); }
  bool revoke(std::uint64_t number) noexcept override {
    end(number);
    return cell(number).exchange(AnnouncementCells::kRevoked) != number;
  }
  bool stands(std::uint64_t number) const noexcept override {
    return cell(number).load(std::memory_order_acquire) != AnnouncementCells::kRevoked;
  }
  // The bytes were read before this, and the exchange keeps that order, as the one in revoke() does.
  bool take(std::uint64_t number) noexcept override {
    std::uint64_t seen = cell(number).load();
    while (seen != AnnouncementCells::kRevoked)
      if (cell(number).compare_exchange_weak(seen, number)) return true;
    return false;
  }

 private:
  std::atomic<std::uint64_t>& cell(std::uint64_t number) const noexcept {
    return cells_.taken[number % kMaxOutstanding];
  }

  AnnouncementCells& cells_;
  std::bitset<kMaxOutstanding> open_;  // the initiator's cells that are in use
  std::uint64_t next_ = 1;
};

}  // namespace fab::shm
