#pragma once

#include "fabric/types/types.h"

namespace fab {

// What is wrong with a transfer as far as the initiator can tell: ok, invalid, not_supported, message_size,
// or bounds for null addresses and for memory that has to be copied though processors do not reach it. Paths
// that move bytes themselves and Session judge alike.
Errc check_transfer(const Transfer& transfer) noexcept;

// Whether an address of local memory that the transfer needs is null.
bool lacks_local(const Transfer& transfer) noexcept;

// Whether local memory of a transfer is hidden from processors (DmaBuf).
bool hides_local(const Transfer& transfer) noexcept;

// check_transfer() for links that copy the bytes: also bounds where processors do not reach the local memory.
Errc check_copied(const Transfer& transfer) noexcept;

}  // namespace fab
