#pragma once

#include "fabric/completion/completion_queue.h"
#include "python/bind.h"

namespace fab::python {

// The Completion of a queue entry. `context` (borrowed) replaces the number, unless it is null. Returns null
// with the Python error set if there is no memory.
PyObject* make_completion(const Completion& completion, PyObject* context);
// Sets the package's class CompletionFlag, in which completions give their flags.
void set_flag_class(const py::object& flags);
void bind_completion(py::module_& m);

}  // namespace fab::python
