#pragma once

#include "fabric/completion/completion_queue.h"
#include "python/bind.h"

namespace fab::python {

// The Completion of a queue entry; `context` (borrowed) replaces the number if given. Null: Python error set.
PyObject* make_completion(const Completion& completion, PyObject* context);
// The class CompletionFlag of the package, in which completions tell their flags.
void set_flag_class(const py::object& flags);
void bind_completion(py::module_& m);

}  // namespace fab::python
