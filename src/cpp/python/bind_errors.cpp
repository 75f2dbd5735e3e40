#include <unistd.h>

#include <system_error>

#include "base/bytes/printable.h"
#include "python/bind.h"

namespace fab::python {
namespace {

// The exception class of each code. The package's Python code defines the classes and sets them here once.
// They are never freed, because exceptions may be raised until the interpreter is gone.
PyObject* error_classes = nullptr;
PyObject* base_class = nullptr;

py::object class_for(Errc code) {
  if (!error_classes) return py::reinterpret_borrow<py::object>(PyExc_OSError);
  const py::int_ key(static_cast<int>(code));
  PyObject* found = PyDict_GetItem(error_classes, key.ptr());
  return py::reinterpret_borrow<py::object>(found ? found : base_class);
}

void raise(Errc code, std::string message) {
  if (code == Errc::too_many_files) message += "; close some files, or raise the limit (`ulimit -n`)";
  const py::object error = make_error(code, message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

// pybind11 prescribes the signature.
void translate(std::exception_ptr thrown) {  // NOLINT(performance-unnecessary-value-param)
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise(error.code(), error.what());
  } catch (const std::system_error& error) {
    raise(shortage_or(error, static_cast<Errc>(error.code().value())), error.what());
  }
}

}  // namespace

py::str shown(std::string_view foreign) {
  const std::string bytes = printable(foreign);
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (!text) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::object make_error(Errc code, const std::string& message) {
  return class_for(code)(static_cast<int>(code), shown(message));
}

namespace {

// Sets the Python error for the C++ exception being handled. Throws what it meets on the way.
void set_error_of_exception() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    raise(error.code(), error.what());
  } catch (const std::system_error& error) {
    raise(shortage_or(error, static_cast<Errc>(error.code().value())), error.what());
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "an argument has the wrong type or is out of range");
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetObject(PyExc_RuntimeError, shown(error.what()).ptr());
  }
}

}  // namespace

// Making the error needs memory and runs Python, either of which may fail with an error of its own.
void set_python_error() noexcept {
  try {
    set_error_of_exception();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    PyErr_NoMemory();
  }
}

bool WithoutGil::finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void WithoutGil::stay_away() noexcept {
  for (;;) ::pause();
}

bool wait_interruptibly(const std::function<bool(Deadline)>& wait, Deadline deadline) {
  for (;;) {
    {
      const WithoutGil without_gil;
      if (wait(deadline.sooner(std::chrono::milliseconds(50)))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.passed()) return false;
  }
}

Deadline deadline_from(py::handle timeout) {
  if (timeout.is_none()) return {};
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1 && PyErr_Occurred()) throw py::error_already_set();
  return seconds <= 0 ? Deadline::in(std::chrono::nanoseconds(0)) : Deadline::in_seconds(seconds);
}

void bind_errors(py::module_& m) {
  py::register_exception_translator(&translate);
  m.def(
      "set_error_classes",
      [](const py::dict& classes, const py::object& base) {
        error_classes = py::dict(classes).release().ptr();
        base_class = py::object(base).release().ptr();
      },
      py::arg("classes"), py::arg("base"));
  m.def("error_name", [](int code) { return std::string(name(static_cast<Errc>(code))); }, py::arg("code"));
  m.def(
      "error_text", [](int code) { return std::string(describe(static_cast<Errc>(code))); }, py::arg("code"));
}

}  // namespace fab::python
