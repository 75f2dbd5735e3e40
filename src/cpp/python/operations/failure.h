#pragma once

#include "fabric/context/context.h"
#include "fabric/context/failure.h"
#include "python/bind.h"

namespace fab::python {

// The exception for a failure, with the words of text_of().
py::object make_exception(const Failure& failure, Context* context);
// Sets that exception as the Python error.
void raise_failure(const Failure& failure, Context* context);

}  // namespace fab::python
