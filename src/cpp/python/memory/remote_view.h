#pragma once

#include <array>
#include <vector>

#include "python/bind.h"

namespace fab::python {

// Python's RemoteRegion: a peer's region, or a NumPy-like view of a part of it. Immutable.
struct RemoteView {
  static constexpr int kMaxDims = 16;

  std::shared_ptr<const RemoteRegion> region;
  std::uint64_t offset = 0;  // bytes from the start of the region to element (0, 0, …)
  std::uint64_t nbytes = 0;  // of all elements
  py::object dtype;          // numpy.dtype
  std::int64_t itemsize = 1;
  int ndim = 1;
  std::array<std::int64_t, kMaxDims> shape{}, strides{};  // in elements, and in bytes
  bool contiguous = true;

  static RemoteView of(RemoteRegion region, py::object dtype, const std::vector<std::int64_t>& shape);
  // `view[index]` with integers, slices and one Ellipsis. Throws Error(bounds) as NumPy's IndexError.
  RemoteView at(py::handle index) const;
  // Whether at() takes such an index. Other indices select rows by number.
  static bool takes(py::handle index);
  // Whether `array` is a C-contiguous ndarray of exactly this shape and dtype.
  bool is_like(PyObject* array) const;
  // The bytes [start, stop) of a contiguous view.
  RemoteView bytes(std::int64_t start, std::int64_t stop) const;
  // The same memory as elements of another type, by NumPy's rule: the last axis gets longer or shorter.
  RemoteView as(py::object type) const;
  // The beginning of a contiguous view as an array of another type and shape.
  RemoteView as(py::object type, const std::vector<std::int64_t>& form) const;
  // The contiguous runs that the elements lie in, in C order, as offsets within the region. All runs have the
  // same length.
  std::vector<std::uint64_t> runs(std::uint64_t& run_length) const;
  // Transfer::remote for the first byte.
  std::uint64_t remote() const noexcept { return region->base + offset; }

  std::string encode() const;
  // Throws Error(invalid).
  static RemoteView decode(std::string_view bytes);
  std::string describe() const;

 private:
  void settle();  // derives nbytes and contiguous
};

// The view behind `object` if that is a RemoteRegion and of no subclass, otherwise null.
const RemoteView* remote_view(PyObject* object);

}  // namespace fab::python
