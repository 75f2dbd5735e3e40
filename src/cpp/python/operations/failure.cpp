#include "python/operations/failure.h"

#include "python/operations/operation_object.h"

namespace fab::python {

py::object make_exception(const Failure& failure, Context* context) {
  return make_error(failure.error, WithoutGil::run([&] { return text_of(failure, context); }));
}

void raise_failure(const Failure& failure, Context* context) {
  const py::object exception = make_exception(failure, context);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace fab::python
