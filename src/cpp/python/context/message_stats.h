#pragma once

#include "python/bind.h"

namespace fab::python {

// Methods of a context: counts of its messages, and of its links.
PyObject* message_stats(PyObject* self, PyObject*);
PyObject* link_stats(PyObject* self, PyObject*);

}  // namespace fab::python
