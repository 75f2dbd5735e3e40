#include "python/memory/buffers.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace fab::python {
namespace {

// Objects and a function of NumPy, and an empty tuple. They are set when the core is imported, and never
// freed.
PyTypeObject* array_type = nullptr;
PyObject* (*array_scalar)(void* data, PyObject* dtype, PyObject* base) = nullptr;
PyObject* no_index = nullptr;

[[noreturn]] void refuse(const std::string& message) { throw Error(Errc::invalid, message); }

std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

}  // namespace

void** numpy_functions() {
  const bool second = py::module_::import("numpy").attr("__version__").cast<std::string>()[0] != '1';
  const auto core =
      py::module_::import(second ? "numpy._core._multiarray_umath" : "numpy.core._multiarray_umath");
  auto* const functions =
      reinterpret_cast<void**>(PyCapsule_GetPointer(core.attr("_ARRAY_API").ptr(), nullptr));
  if (!functions) throw py::error_already_set();
  return functions;
}

void prepare_buffers() {
  const auto numpy = py::module_::import("numpy");
  array_type = reinterpret_cast<PyTypeObject*>(numpy.attr("ndarray").cast<py::object>().release().ptr());
  constexpr std::size_t kScalar = 60;  // place of PyArray_Scalar
  array_scalar = reinterpret_cast<decltype(array_scalar)>(numpy_functions()[kScalar]);
  no_index = py::tuple().release().ptr();
}

bool is_array(PyObject* object) { return PyObject_TypeCheck(object, array_type); }
bool is_exact_array(PyObject* object) { return Py_TYPE(object) == array_type; }

py::ssize_t itemsize_of(PyObject* dtype) {
  const bool first = py::detail::npy_api::get().PyArray_RUNTIME_VERSION_ < 0x12;
  return first ? py::detail::array_descriptor1_proxy(dtype)->elsize
               : py::detail::array_descriptor2_proxy(dtype)->elsize;
}

bool is_writable(PyObject* array) {
  return (py::detail::array_proxy(array)->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
}

PyObject* make_array(PyObject* dtype, int ndim, const std::int64_t* shape) {
  std::array<Py_intptr_t, 32> extents{};
  std::copy_n(shape, ndim, extents.begin());
  const auto& api = py::detail::npy_api::get();
  Py_INCREF(dtype);  // PyArray_NewFromDescr steals a reference
  PyObject* array =
      api.PyArray_NewFromDescr_(api.PyArray_Type_, dtype, ndim, extents.data(), nullptr, nullptr, 0, nullptr);
  if (!array) throw py::error_already_set();
  return array;
}

PyObject* make_scalar(void* data, PyObject* dtype) { return array_scalar(data, dtype, nullptr); }

PyObject* element_or_array(PyObject* array) {
  if (py::detail::array_proxy(array)->nd != 0) return Py_NewRef(array);
  return PyObject_GetItem(array, no_index);
}

LocalBuffer::LocalBuffer(LocalBuffer&& other) noexcept
    : data(other.data),
      nbytes(other.nbytes),
      pieces(std::move(other.pieces)),
      dtype(other.dtype),
      holder(std::exchange(other.holder, nullptr)),
      memory(std::move(other.memory)),
      views_(std::exchange(other.views_, {})) {}

LocalBuffer& LocalBuffer::operator=(LocalBuffer&& other) noexcept {
  if (this != &other) {
    this->~LocalBuffer();
    new (this) LocalBuffer(std::move(other));
  }
  return *this;
}

LocalBuffer::~LocalBuffer() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
  Py_XDECREF(holder);
}

[[gnu::hot]] void LocalBuffer::add_piece(void* piece, std::size_t size) {
  if (size == 0) return;
  if (nbytes == 0) {
    data = static_cast<std::byte*>(piece);
  } else {
    if (pieces.empty()) pieces.push_back({data, static_cast<std::size_t>(nbytes)});
    pieces.push_back({piece, size});
  }
  nbytes += size;
}

namespace {

// The fields of an ndarray. Asking by the buffer protocol would cost more than the rest of a small operation.
struct ArrayFields {
  std::byte* data;
  std::uint64_t nbytes;
  PyObject* dtype;  // borrowed
  bool contiguous;
};

ArrayFields array_fields(PyObject* array) {
  const auto* fields = py::detail::array_proxy(array);
  auto nbytes = static_cast<std::uint64_t>(itemsize_of(fields->descr));
  for (int i = 0; i < fields->nd; ++i) nbytes *= static_cast<std::uint64_t>(fields->dimensions[i]);
  return {reinterpret_cast<std::byte*>(fields->data), nbytes, fields->descr,
          (fields->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) != 0};
}

bool in_fortran_order(PyObject* array) {
  return (py::detail::array_proxy(array)->flags & py::detail::npy_api::NPY_ARRAY_F_CONTIGUOUS_) != 0;
}

}  // namespace

[[gnu::hot]] void LocalBuffer::add(PyObject* object, bool writable) {
  if (is_array(object)) [[likely]] {
    const ArrayFields array = array_fields(object);
    const char kind = py::detail::array_descriptor_proxy(array.dtype)->kind;
    if (kind == 'O' || (kind == 'V' && py::handle(array.dtype).attr("hasobject").cast<bool>()))
      refuse("the array holds Python objects, which have no meaning in another process; use a numeric dtype");
    if (!array.contiguous && in_fortran_order(object))
      refuse(
          "the array is in Fortran order, so its items lie in another order than C's; pass "
          "numpy.ascontiguousarray(a), or a.T to move its memory as it lies");
    if (!array.contiguous)
      refuse(
          "the array is not C-contiguous; pass numpy.ascontiguousarray(a), or its parts with "
          "write_many/read_many");
    if (writable && !is_writable(object))
      throw Error(Errc::access, "the array is read-only, and the operation writes into it");
    dtype = array.dtype;
    add_piece(array.data, static_cast<std::size_t>(array.nbytes));
  } else {
    add_exported(object, writable);
  }
}

// What is no array of NumPy: it is asked by the buffer protocol, or for an array.
void LocalBuffer::add_exported(PyObject* object, bool writable) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_ND | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    if (PyErr_ExceptionMatches(PyExc_OSError)) throw py::error_already_set();  // pyfab's own error says more
    PyErr_Clear();
    // Arrays on a GPU may be buffers by their type, and refuse when they are asked.
    if (PyObject_HasAttrString(object, "__dlpack_device__") ||
        PyObject_HasAttrString(object, "__cuda_array_interface__")) {
      const py::object array = py::module_::import("pyfab.core.buffers").attr("array_of")(py::handle(object));
      add(array.ptr(), writable);
      // The object may keep neither this array nor its dtype. A view of the array does.
      if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_ND) != 0) throw py::error_already_set();
      return views_.push_back(view);
    }
    if (PyObject_CheckBuffer(object) && writable && PyObject_GetBuffer(object, &view, PyBUF_ND) == 0) {
      PyBuffer_Release(&view);
      throw Error(Errc::access,
                  "the " + type_name(object) + " is read-only, and the operation writes into it");
    }
    PyErr_Clear();
    if (PyObject_CheckBuffer(object))
      refuse("the " + type_name(object) +
             " is not C-contiguous memory; copy it into a contiguous buffer first");
    refuse("an object of type " + type_name(object) +
           " is no memory: pass a NumPy array, any other buffer, a list of buffers, or (region, offset, "
           "length)");
  }
  views_.push_back(view);
  add_piece(view.buf, static_cast<std::size_t>(view.len));
}

[[gnu::hot]] LocalBuffer LocalBuffer::of(PyObject* object, bool writable) {
  LocalBuffer buffer;
  if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 3 &&
      PyObject_HasAttrString(PyTuple_GET_ITEM(object, 0), "_core")) {
    const auto tuple = py::reinterpret_borrow<py::tuple>(object);
    try {
      const auto region = tuple[0].attr("_core").cast<std::shared_ptr<MemoryRegion>>();
      buffer.memory = region->keep_alive();
      for (const iovec& piece : region->slice(tuple[1].cast<std::uint64_t>(), tuple[2].cast<std::uint64_t>()))
        buffer.add_piece(piece.iov_base, piece.iov_len);
    } catch (const py::cast_error&) {
      throw Error(Errc::bounds, "(region, offset, length): offset and length are ints from 0 on, not " +
                                    py::repr(tuple[1]).cast<std::string>() + " and " +
                                    py::repr(tuple[2]).cast<std::string>());
    }
    buffer.holder = Py_NewRef(object);
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    // A tuple keeps the present elements, because the caller may change its list while the operation runs.
    buffer.holder = PySequence_Tuple(object);
    if (!buffer.holder) throw py::error_already_set();
    const Py_ssize_t count = PyTuple_GET_SIZE(buffer.holder);
    if (std::cmp_greater(count, kMaxPieces))
      refuse(std::to_string(count) + " buffers in one operation; at most " + std::to_string(kMaxPieces));
    for (Py_ssize_t i = 0; i < count; ++i) buffer.add(PyTuple_GET_ITEM(buffer.holder, i), writable);
    if (count != 1) buffer.dtype = nullptr;
  } else {
    buffer.add(object, writable);
    buffer.holder = Py_NewRef(object);
  }
  return buffer;
}

}  // namespace fab::python
