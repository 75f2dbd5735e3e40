#pragma once

#include <cstddef>

#include "fabric/types/types.h"

namespace fab {

// Whether the pair exists: bitwise operations take integers only.
bool atomic_supported(AtomicOp op, DataType type) noexcept;

// What is done to each element, and with what.
struct AtomicUpdate {
  AtomicOp op;
  DataType type;
  const std::byte* operand = nullptr;  // not read by atomic_read
  const std::byte* compare = nullptr;  // needed by operations that compare
  std::byte* result = nullptr;         // takes the former values, if it is not null
};

// Updates each of `length / size_of(type)` elements at `target`, each atomically with respect to all other
// users of this function on that memory, in any process. `target` must be aligned to the element: ok, or
// invalid if it is not, or not_supported; nothing is touched then. `modified` (may be null) becomes true if
// an element has another value than before, or was written outright, and stays as it is otherwise.
Errc apply_atomic(const AtomicUpdate& update, std::byte* target, std::size_t length,
                  bool* modified = nullptr) noexcept;

// The same with the atomic of a transfer, whose memory may be gone: bounds. If operands are, nothing is
// changed, unless they go meanwhile. If it is the place of the result, the target may have been updated.
// `target` itself is not guarded.
Errc apply_atomic(const Transfer& transfer, std::byte* target, bool* modified) noexcept;

}  // namespace fab
