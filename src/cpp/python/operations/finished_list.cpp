#include "base/locks/mutex.h"
#include "python/operations/operation_object.h"

namespace fab::python {
namespace {

void run_callbacks(OperationObject& operation) noexcept {
  PyObject* callbacks;
  {
    const py::scoped_critical_section section(reinterpret_cast<PyObject*>(&operation));
    callbacks = std::exchange(operation.callbacks, nullptr);
  }
  if (!callbacks) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(callbacks); ++i) {
    PyObject* result =
        PyObject_CallOneArg(PyList_GET_ITEM(callbacks, i), reinterpret_cast<PyObject*>(&operation));
    if (!result) PyErr_WriteUnraisable(PyList_GET_ITEM(callbacks, i));
    Py_XDECREF(result);
  }
  Py_DECREF(callbacks);
  if (operation.origin->tally) operation.origin->tally->called(operation.entry.number);
}

}  // namespace

[[gnu::hot]] void FinishedList::push(OperationObject& operation) noexcept {
  operation.next = head_.load(std::memory_order_relaxed);
  while (!head_.compare_exchange_weak(operation.next, &operation, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

[[gnu::hot]] void FinishedList::drain() noexcept {
  do {
    if (draining_.exchange(true)) return;
    drainer_.store(std::this_thread::get_id());
    drain_once();
    drainer_.store({});
    draining_.store(false);
  } while (!empty());
}

void FinishedList::drain_once() noexcept {
  while (!empty()) {
    OperationObject* list = head_.exchange(nullptr);
    OperationObject* oldest_first = nullptr;
    while (list) {
      OperationObject* next = list->next;
      list->next = oldest_first;
      oldest_first = list;
      list = next;
    }
    while (oldest_first) {
      OperationObject& operation = *oldest_first;
      oldest_first = operation.next;
      delete std::exchange(operation.buffers, nullptr);
      run_callbacks(operation);
      Py_DECREF(reinterpret_cast<PyObject*>(&operation));
    }
    std::vector<OperationObject*> late;
    {
      const LockGuard lock(late_mutex_);
      late.swap(late_operations_);
      late_.store(false);
    }
    for (OperationObject* operation : late) {
      run_callbacks(*operation);
      Py_DECREF(reinterpret_cast<PyObject*>(operation));
    }
  }
}

void FinishedList::call_late(OperationObject& operation) {
  {
    const LockGuard lock(late_mutex_);
    late_operations_.push_back(&operation);
    Py_INCREF(reinterpret_cast<PyObject*>(&operation));
    late_.store(true);
  }
  drain();
}

}  // namespace fab::python
