#pragma once

#include <array>
#include <vector>

#include "python/bind.h"

namespace fab::python {

// What Python calls RemoteRegion: a peer's region, or a NumPy-like view of a part of it. Immutable.
struct RemoteView {
  static constexpr int kMaxDims = 16;

  std::shared_ptr<const RemoteRegion> region;
  std::uint64_t offset = 0;  // bytes from the start of the region to element (0, 0, …)
  std::uint64_t nbytes = 0;  // of all elements
  py::object dtype;          // numpy.dtype
  std::int64_t itemsize = 1;
  int ndim = 1;
  std::array<std::int64_t, kMaxDims> shape{}, strides{};  // elements; bytes
  bool contiguous = true;

  static RemoteView of(RemoteRegion region, py::object dtype, const std::vector<std::int64_t>& shape);
  // `view[index]` with integers, slices and one Ellipsis. Throws Error(bounds) as NumPy's IndexError.
  RemoteView at(py::handle index) const;
  // Whether at() takes such an index: others select rows by number.
  static bool takes(py::handle index);
  // Whether `array` is an ndarray, C-contiguous, of just this shape and dtype.
  bool is_like(PyObject* array) const;
  // The bytes [start, stop) of a contiguous view.
  RemoteView bytes(std::int64_t start, std::int64_t stop) const;
  // The contiguous runs that the elements lie in, in C order: offsets within the region, all of equal length.
  std::vector<std::uint64_t> runs(std::uint64_t& run_length) const;
  // What a Transfer's `remote` is for the first byte.
  std::uint64_t remote() const noexcept { return region->base + offset; }

  std::string encode() const;
  static RemoteView decode(std::string_view bytes);  // throws Error(invalid)
  std::string describe() const;

 private:
  void settle();  // derives nbytes and contiguous
};

// The view behind `object` if it is exactly a RemoteRegion, else null.
const RemoteView* remote_view(PyObject* object);

}  // namespace fab::python
