#pragma once

#include "python/bind.h"

namespace fab::python {

// Methods of a context that tell what messages did there.
PyObject* message_stats(PyObject* self, PyObject*);
PyObject* link_stats(PyObject* self, PyObject*);

}  // namespace fab::python
