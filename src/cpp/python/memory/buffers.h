#pragma once

#include <sys/uio.h>

#include <vector>

#include "python/bind.h"

namespace fab::python {

// Local memory of an operation as its caller gave it: an array, any buffer, a list of them, or (region,
// offset, length). Holds what keeps the memory in place. Move-only.
class LocalBuffer {
 public:
  LocalBuffer() = default;
  LocalBuffer(LocalBuffer&& other) noexcept;
  LocalBuffer& operator=(LocalBuffer&& other) noexcept;
  ~LocalBuffer();  // needs the GIL

  // Throws for memory that is not C-contiguous, not writable where `writable` is asked for, or no memory at
  // all.
  static LocalBuffer of(PyObject* object, bool writable);

  std::byte* data = nullptr;  // of the only piece; with several, see `pieces`
  std::uint64_t nbytes = 0;
  std::vector<iovec> pieces;     // two or more pieces, or empty
  PyObject* dtype = nullptr;     // borrowed: the dtype of an ndarray, else null
  PyObject* holder = nullptr;    // owned: keeps the memory alive
  std::shared_ptr<void> memory;  // likewise, of a region

 private:
  void add(PyObject* object, bool writable);
  void add_piece(void* piece, std::size_t size);
  std::vector<Py_buffer> views_;
};

bool is_array(PyObject* object);        // numpy.ndarray or a subclass
bool is_exact_array(PyObject* object);  // no subclass
// Bytes of an element. Leaves the dtype's count of references alone, which all threads share.
py::ssize_t itemsize_of(PyObject* dtype);
// The fields of an ndarray without the buffer protocol, which costs more than the rest of a small operation.
struct ArrayFields {
  std::byte* data;
  std::uint64_t nbytes;
  PyObject* dtype;
  bool contiguous, writable;
};
ArrayFields array_fields(PyObject* array);
// These return new references.
PyObject* make_array(PyObject* dtype, int ndim, const std::int64_t* shape);  // its elements are not set
PyObject* make_scalar(void* data, PyObject* dtype);                          // of the bytes at `data`
PyObject* element_or_array(PyObject* array);  // `array[()]`: its scalar if it has no axes, else itself

}  // namespace fab::python
