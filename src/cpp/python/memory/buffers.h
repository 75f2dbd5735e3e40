#pragma once

#include <sys/uio.h>

#include <vector>

#include "python/bind.h"

namespace fab::python {

// Local memory of an operation, from what its caller gave: an array, any buffer, a list of these, or (region,
// offset, length). Holds the objects that keep the memory in place. Move-only.
class LocalBuffer {
 public:
  LocalBuffer() = default;
  LocalBuffer(LocalBuffer&& other) noexcept;
  LocalBuffer& operator=(LocalBuffer&& other) noexcept;
  ~LocalBuffer();  // needs the GIL

  // Throws if `object` is no memory, if the memory is not C-contiguous, or if it has to be writable and is
  // not.
  static LocalBuffer of(PyObject* object, bool writable);

  std::byte* data = nullptr;  // of the only piece; several pieces are in `pieces`
  std::uint64_t nbytes = 0;
  std::vector<iovec> pieces;     // two or more pieces, or empty
  PyObject* dtype = nullptr;     // borrowed from what is held: the dtype of an ndarray, else null
  PyObject* holder = nullptr;    // owned: keeps the memory alive
  std::shared_ptr<void> memory;  // keeps the memory of a region alive

 private:
  void add(PyObject* object, bool writable);
  [[gnu::cold]] void add_exported(PyObject* object, bool writable);
  void add_piece(void* piece, std::size_t size);
  std::vector<Py_buffer> views_;
};

// NumPy's table of functions; the places in it are the same in versions 1 and 2.
void** numpy_functions();
bool is_array(PyObject* object);        // numpy.ndarray or a subclass
bool is_exact_array(PyObject* object);  // no subclass
bool is_writable(PyObject* array);
// The bytes of an element. Does not touch the reference count of the dtype, which all threads share.
py::ssize_t itemsize_of(PyObject* dtype);
// These return new references. The elements of make_array() are not set. make_scalar() takes the bytes at
// `data`. element_or_array() is `array[()]`: the scalar of an array without axes, and otherwise the array
// itself.
PyObject* make_array(PyObject* dtype, int ndim, const std::int64_t* shape);
PyObject* make_scalar(void* data, PyObject* dtype);
PyObject* element_or_array(PyObject* array);

}  // namespace fab::python
