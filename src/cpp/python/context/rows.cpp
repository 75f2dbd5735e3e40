#include "python/context/rows.h"

#include <algorithm>

namespace fab::python {

Offsets offsets_from(PyObject* object, const char* what) {
  const auto array = py::array::ensure(py::reinterpret_borrow<py::object>(object));
  if (!array) {
    PyErr_Clear();
    throw Error(Errc::invalid, std::string(what) + " is not an array of integers");
  }
  const char kind = array.dtype().kind();
  if ((kind != 'i' && kind != 'u') && array.size() != 0)
    throw Error(Errc::invalid, std::string(what) + " has dtype " +
                                   py::str(array.dtype()).cast<std::string>() + "; it must hold integers");
  if (array.ndim() > 1) throw Error(Errc::invalid, std::string(what) + " must have one dimension");
  if (kind == 'i' && array.size() != 0 && array.attr("min")().cast<std::int64_t>() < 0)
    throw Error(Errc::bounds, std::string(what) + " holds a negative number");
  return Offsets::ensure(array);
}

namespace {

Column column(const Offsets& array, std::size_t rows, const char* what) {
  const auto size = static_cast<std::size_t>(array.size());
  if (array.ndim() == 0 || (size == 1 && rows != 1)) return {array.data(), 0};
  if (size != rows)
    throw Error(Errc::invalid, std::string(what) + " has " + std::to_string(size) +
                                   " entries, the other columns " + std::to_string(rows));
  return {array.data(), 1};
}

void check_column(const Column& offsets, const Column& lengths, std::size_t rows, std::uint64_t limit,
                  const char* what) {
  for (std::size_t i = 0; i < rows; ++i)
    if (offsets[i] > limit || lengths[i] > limit - offsets[i])
      throw Error(Errc::bounds, "row " + std::to_string(i) + ": " + std::to_string(lengths[i]) +
                                    " bytes at " + what + " offset " + std::to_string(offsets[i]) +
                                    " are not inside the " + std::to_string(limit) + " bytes there");
}

}  // namespace

Rows rows_of(PyObject* remote_offsets, PyObject* local_offsets, PyObject* lengths) {
  Rows rows{.remote_array = offsets_from(remote_offsets, "remote_offsets"),
            .local_array = offsets_from(local_offsets, "local_offsets"),
            .length_array = offsets_from(lengths, "lengths")};
  // A column of length 0 means that there are no rows. Every column that is no single number must be empty
  // then.
  bool none = false;
  py::ssize_t longest = 0;
  for (const Offsets* array : {&rows.remote_array, &rows.local_array, &rows.length_array}) {
    none |= array->ndim() && array->size() == 0;
    longest = std::max(longest, array->ndim() ? array->size() : 1);
  }
  const auto count = static_cast<std::size_t>(longest);
  if (none && count > 1)
    throw Error(Errc::invalid, "one of remote_offsets, local_offsets and lengths is empty, another has " +
                                   std::to_string(count) + " entries");
  if (none) return rows;
  rows.count = count;
  rows.remote = column(rows.remote_array, count, "remote_offsets");
  rows.local = column(rows.local_array, count, "local_offsets");
  rows.length = column(rows.length_array, count, "lengths");
  return rows;
}

void check_rows(const Rows& rows, const LocalBuffer& local, const Target& target) {
  check_column(rows.local, rows.length, rows.count, local.nbytes, "local");
  if (target.view) check_column(rows.remote, rows.length, rows.count, target.view->nbytes, "remote");
}

LocalBuffer one_piece(const char* name, PyObject* object, bool writable) {
  LocalBuffer local = LocalBuffer::of(object, writable);
  if (!local.pieces.empty())
    throw Error(Errc::invalid, std::string(name) + " takes one local buffer, not a list");
  return local;
}

void check_contiguous(const char* name, const Target& target) {
  if (target.view && !target.view->contiguous)
    throw Error(
        Errc::invalid,
        std::string(name) + " takes a contiguous remote array; pass the whole region and offsets into it");
}

}  // namespace fab::python
