#pragma once

#include <cstdint>

#include "fabric/context/context.h"
#include "python/bind.h"

namespace fab::python {

// An operation that failed: what was asked, of whom, what was found.
struct Failure {
  OpCode op;
  Errc error;
  std::uint64_t nbytes, remote, key;
  PeerId peer;
};

const char* verb(OpCode op) noexcept;  // "write"
// The exception that tells of it. `context`, which may be null, knows the way to the peer.
py::object make_exception(const Failure& failure, Context* context);
// Sets it as the Python error.
void raise_failure(const Failure& failure, Context* context);

}  // namespace fab::python
