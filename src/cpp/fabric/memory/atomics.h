#pragma once

#include <cstddef>

#include "fabric/types/types.h"

namespace fab {

// Whether the pair exists: bitwise operations take integers only.
bool atomic_supported(AtomicOp op, DataType type) noexcept;

// Applies `op` to each of `length / size_of(type)` elements at `target`, each atomically with respect to all
// other users of this function on that memory, in any process. `result` (may be null) takes the former
// values; `compare` is needed by the comparing ones. `target` must be aligned to the element: ok, or invalid
// if it is not, or not_supported; nothing is touched then. `modified` (may be null) becomes true if an
// element has another value than before, or was written outright, and stays as it is otherwise.
Errc apply_atomic(AtomicOp op, DataType type, std::byte* target, std::size_t length, const std::byte* operand,
                  const std::byte* compare, std::byte* result, bool* modified = nullptr) noexcept;

}  // namespace fab
