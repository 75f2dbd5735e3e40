#include "python/operations/completion_object.h"

#include "python/operations/operation_object.h"

namespace fab::python {
namespace {

PyTypeObject* completion_type = nullptr;
PyObject* flag_class = nullptr;

struct CompletionObject {
  PyObject_HEAD Completion value;
  PyObject* context;  // owned
};

CompletionObject& completion_of(PyObject* self) { return *reinterpret_cast<CompletionObject*>(self); }

int completion_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(completion_of(self).context);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

int completion_clear(PyObject* self) {
  Py_CLEAR(completion_of(self).context);
  return 0;
}

void completion_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  completion_clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyObject* completion_flags_get(PyObject* self, void*) {
  PyObject* number = PyLong_FromUnsignedLong(completion_of(self).value.flags);
  if (!flag_class || !number) return number;
  PyObject* flags = PyObject_CallOneArg(flag_class, number);
  Py_DECREF(number);
  return flags;
}

PyObject* completion_error_get(PyObject* self, void*) {
  const Completion& value = completion_of(self).value;
  if (value.error == Errc::ok) Py_RETURN_NONE;
  try {
    return make_error(value.error, std::string("the operation failed: ") + describe(value.error))
        .release()
        .ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

template <std::uint64_t Completion::* field>
PyObject* completion_number(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(completion_of(self).value.*field);
}

PyGetSetDef completion_getset[] = {
    {"context",
     [](PyObject* self, void*) {
       PyObject* context = completion_of(self).context;
       return Py_NewRef(context ? context : Py_None);  // null: the collector has cleared it
     },
     nullptr, "What the caller gave as context, or None.", nullptr},
    {"flags", completion_flags_get, nullptr, "CompletionFlag: the kind of operation.", nullptr},
    {"nbytes", completion_number<&Completion::length>, nullptr, "Bytes moved.", nullptr},
    {"data", completion_number<&Completion::data>, nullptr, "Remote data of the peer's write; 0 without.",
     nullptr},
    {"tag", completion_number<&Completion::tag>, nullptr, "Tag of a message; 0 without.", nullptr},
    {"offset", completion_number<&Completion::offset>, nullptr,
     "Where a message begins in the memory of a receive for many.", nullptr},
    {"overflow", completion_number<&Completion::overflow>, nullptr,
     "Bytes of a truncated message that had no room.", nullptr},
    {"source", completion_number<&Completion::source>, nullptr,
     "Handle of the peer that caused the entry, or ADDR_NOTAVAIL.", nullptr},
    {"error", completion_error_get, nullptr, "None, or the exception that tells why the operation failed.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* completion_repr(PyObject* self) {
  PyObject* flags = completion_flags_get(self, nullptr);
  if (!flags) return nullptr;
  const Completion& value = completion_of(self).value;
  PyObject* text = PyUnicode_FromFormat(
      "Completion(context=%R, flags=%R, nbytes=%llu, data=%llu, tag=%llu, source=%lld%s%s)",
      completion_of(self).context ? completion_of(self).context : Py_None, flags, value.length, value.data,
      value.tag, static_cast<long long>(value.source),
      value.error == Errc::ok ? "" : ", error=", value.error == Errc::ok ? "" : name(value.error));
  Py_DECREF(flags);
  return text;
}

PyType_Slot completion_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(completion_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(completion_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(completion_clear)},
    {Py_tp_getset, completion_getset},
    {Py_tp_repr, reinterpret_cast<void*>(completion_repr)},
    {Py_tp_doc, const_cast<char*>("How an operation ended, or what a peer did to this process. Immutable.")},
    {0, nullptr}};
PyType_Spec completion_spec = {
    "pyfab.Completion", sizeof(CompletionObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    completion_slots};

}  // namespace

PyObject* make_completion(const Completion& completion, PyObject* context) {
  auto* object = PyObject_GC_New(CompletionObject, completion_type);
  if (!object) return nullptr;
  object->value = completion;
  object->context = context ? Py_NewRef(context) : PyLong_FromUnsignedLongLong(completion.context);
  if (context && PyObject_IS_GC(context)) PyObject_GC_Track(object);  // a number is part of no cycle
  return reinterpret_cast<PyObject*>(object);
}

void set_flag_class(const py::object& flags) { flag_class = py::object(flags).release().ptr(); }

void bind_completion(py::module_& m) {
  completion_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&completion_spec));
  if (!completion_type) throw py::error_already_set();
  m.attr("Completion") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(completion_type));
}

}  // namespace fab::python
