#pragma once

// First include of every file in this folder: the only one that knows Python.
#include <pybind11/critical_section.h>
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "fabric/domain/domain_core.h"
#include "fabric/types/error.h"

namespace py = pybind11;

namespace fab::python {

void prepare_buffers();
void bind_errors(py::module_& m);
void bind_domain(py::module_& m);
void bind_memory(py::module_& m);
void bind_sync(py::module_& m);
void bind_queues(py::module_& m);
void bind_address_vector(py::module_& m);
void bind_remote(py::module_& m);
void bind_operation(py::module_& m);
void bind_context(py::module_& m);
void bind_messages(py::module_& m);
void bind_remote_array(py::module_& m);
void bind_window(py::module_& m);
void bind_gather(py::module_& m);

// Text for people of bytes that others may have chosen. What is not UTF-8 is escaped, so this never fails.
py::str shown(std::string_view bytes);
// The library's exception for `code`, as an instance; message as given.
py::object make_error(Errc code, const std::string& message);
// Sets the Python error of the C++ exception being handled. For functions that are called by CPython
// directly.
void set_python_error() noexcept;

// Lets go of the GIL for its lifetime. A daemon thread that wants it back while the interpreter ends stops
// here for ever, because CPython would unwind it through frames that do not expect that.
class WithoutGil {
 public:
  // Returns what `call` returns, which is called without the GIL. Whatever waits for a lock of the core needs
  // this, because the holder of that lock may want the GIL, for instance to ask a policy.
  template <class Call>
  static auto run(const Call& call) {
    const WithoutGil without_gil;
    return call();
  }

  WithoutGil() : ending_(finalizing()), state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (!ending_ && finalizing()) stay_away();
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  static bool finalizing() noexcept;

 private:
  [[noreturn]] static void stay_away() noexcept;
  const bool ending_;  // the thread that ends the interpreter, in a destructor
  PyThreadState* state_;
};

// For types whose instances hold objects of Python's: lets the collector find cycles through them.
// T has `int traverse(visitproc, void*) const`, which visits the objects that this instance owns and neither
// locks, waits nor allocates, and `void clear()`, which lets go of them. What it visits must change only
// under the GIL (on free-threaded CPython: while no thread is stopped for the collector); objects that other
// owners in C++ share are not visited.
template <class T>
py::custom_type_setup holds_objects() {
  return py::custom_type_setup([](PyHeapTypeObject* heap) {
    static constexpr auto kValue = [](PyObject* self) -> T* {
      if (!py::detail::is_holder_constructed(self)) return nullptr;  // __init__ has not returned
      return reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr<T>();
    };
    PyTypeObject& type = heap->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
      Py_VISIT(Py_TYPE(self));
      const T* value = kValue(self);
      return value ? value->traverse(visit, arg) : 0;
    };
    type.tp_clear = [](PyObject* self) -> int {
      if (T* value = kValue(self)) value->clear();
      return 0;
    };
  });
}

// Runs `wait(deadline)` without the GIL until it returns true or the time is over, looking for signals in
// between (Ctrl-C works within 100 ms). Throws py::error_already_set for an exception of a signal handler.
bool wait_interruptibly(const std::function<bool(Deadline)>& wait, Deadline deadline);
// Seconds from a Python argument: None waits for ever.
Deadline deadline_from(py::handle timeout);

}  // namespace fab::python
