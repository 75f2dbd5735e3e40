#pragma once

// pyfab for programs in C++: a process registers memory, and others put, get and update it, or send messages.
// A summary with an example is in docs/cpp.md.

#include "fab/domain.h"    // IWYU pragma: export
#include "fab/endpoint.h"  // IWYU pragma: export
#include "fab/error.h"     // IWYU pragma: export
#include "fab/memory.h"    // IWYU pragma: export
#include "fab/request.h"   // IWYU pragma: export
#include "fab/version.h"   // IWYU pragma: export
