#pragma once

#include "fabric/types.h"

namespace fab {

// What is wrong with a transfer as far as the initiator can tell: ok, invalid, not_supported or message_size.
// Paths that move bytes themselves and Session judge alike.
Errc check_transfer(const Transfer& transfer) noexcept;

}  // namespace fab
