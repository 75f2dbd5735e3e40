#pragma once

// Every file in this folder includes this one first. No other folder of the core knows Python.
#include "python/foreign_text.h"

// The headers above come first.
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
void tell_logs(DomainCore& domain) noexcept;  // in this thread; the caller does not hold the GIL
void bind_logs(py::module_& m);
void bind_memory(py::module_& m);
void bind_numpy_memory(py::module_& m);
void bind_grants(py::module_& m);
void bind_sync(py::module_& m);
void bind_queues(py::module_& m);
void bind_address_vector(py::module_& m);
void bind_remote(py::module_& m);
void bind_operation(py::module_& m);
void bind_context(py::module_& m);
void bind_prepared(py::module_& m);
void bind_messages(py::module_& m);
void bind_remote_array(py::module_& m);
void bind_window(py::module_& m);
void bind_gather(py::module_& m);

// An instance of pyfab's exception class for `code`, with this message.
py::object make_error(Errc code, const std::string& message);
// Sets the Python error that stands for the C++ exception being handled. For functions that CPython calls
// directly.
void set_python_error() noexcept;

// Lets go of the GIL for its lifetime. A daemon thread that wants the GIL back while the interpreter ends
// stops here for ever: CPython would end it by unwinding, through frames that do not expect that.
class WithoutGil {
 public:
  // Calls `call` without the GIL and returns its result. Code that waits for a lock of the core needs this,
  // because the holder of that lock may want the GIL, for instance to ask a policy.
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
  const bool ending_;  // this is the thread that ends the interpreter, in a destructor
  PyThreadState* state_;
};

// Lets Python's collector find cycles through instances that hold Python objects.
//
// T has two functions: `int traverse(visitproc, void*) const` visits the objects that the instance owns, and
// `void clear()` lets go of them. traverse() must not lock, wait or allocate. It does not visit objects that
// other owners in C++ share. The objects that it visits must change only under the GIL or, on free-threaded
// CPython, while no thread is stopped for the collector.
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

// Runs `wait(deadline)` without the GIL until it returns true or the time is over. Looks for signals in
// between, so that Ctrl-C works within 100 ms. Throws py::error_already_set for an exception of a signal
// handler.
bool wait_interruptibly(const std::function<bool(Deadline)>& wait, Deadline deadline);
// The deadline that a Python argument of seconds means. None waits for ever.
Deadline deadline_from(py::handle timeout);

}  // namespace fab::python
