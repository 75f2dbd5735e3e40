// The part of Python's Window that `window[peer]` needs: the arrays of the peers, by rank. The rest is in its
// Python subclass.
#include <utility>

#include "python/bind.h"

namespace fab::python {
namespace {

struct WindowObject {
  // An owned list, by rank. For None the subclass's _open_peer() makes the array.
  PyObject_HEAD PyObject* peers;
};

WindowObject& window_of(PyObject* self) { return *reinterpret_cast<WindowObject*>(self); }

int window_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(window_of(self).peers);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

int window_clear(PyObject* self) {
  Py_CLEAR(window_of(self).peers);
  return 0;
}

void window_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  window_clear(self);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

[[gnu::hot]] PyObject* window_subscript(PyObject* self, PyObject* rank) {
  PyObject* const peers = window_of(self).peers;
  if (peers && PyLong_CheckExact(rank)) {
    const Py_ssize_t number = PyLong_AsSsize_t(rank);
    if (number == -1) PyErr_Clear();
    if (number >= 0 && number < PyList_GET_SIZE(peers))
      if (PyObject* const array = PyList_GET_ITEM(peers, number); array != Py_None) return Py_NewRef(array);
  }
  return PyObject_CallMethod(self, "_open_peer", "(O)", rank);
}

PyGetSetDef window_getset[] = {
    {"_peers",
     [](PyObject* self, void*) { return Py_NewRef(window_of(self).peers ? window_of(self).peers : Py_None); },
     [](PyObject* self, PyObject* peers, void*) {
       if (!peers || !PyList_CheckExact(peers)) {
         PyErr_SetString(PyExc_TypeError, "_peers is a list");
         return -1;
       }
       Py_INCREF(peers);
       Py_XDECREF(std::exchange(window_of(self).peers, peers));
       return 0;
     },
     nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot window_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(window_dealloc)},
                              {Py_tp_traverse, reinterpret_cast<void*>(window_traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(window_clear)},
                              {Py_mp_subscript, reinterpret_cast<void*>(window_subscript)},
                              {Py_tp_getset, window_getset},
                              {Py_tp_doc, const_cast<char*>("The frequent part of pyfab.Window.")},
                              {0, nullptr}};
PyType_Spec window_spec = {"pyfab._core.WindowCore", sizeof(WindowObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, window_slots};

}  // namespace

void bind_window(py::module_& m) {
  PyObject* type = PyType_FromSpec(&window_spec);
  if (!type) throw py::error_already_set();
  m.attr("WindowCore") = py::reinterpret_steal<py::object>(type);
}

}  // namespace fab::python
