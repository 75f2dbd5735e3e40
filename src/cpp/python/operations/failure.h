#pragma once

#include <cstdint>

#include "fabric/context/context.h"
#include "python/bind.h"

namespace fab::python {

// A failed operation: what was asked of which peer, and how it failed.
struct Failure {
  OpCode op;
  Errc error;
  std::uint64_t nbytes, remote, key;
  PeerId peer;
};

const char* verb(OpCode op) noexcept;  // "write"
// The exception for a failure. It names the path to the peer, if `context` is not null and has one.
py::object make_exception(const Failure& failure, Context* context);
// Sets that exception as the Python error.
void raise_failure(const Failure& failure, Context* context);

}  // namespace fab::python
