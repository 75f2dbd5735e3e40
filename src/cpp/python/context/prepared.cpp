#include "python/context/prepared.h"

#include <algorithm>
#include <utility>

namespace fab::python {
namespace {

std::vector<Row> joined(std::vector<Row> rows) {
  std::erase_if(rows, [](const Row& row) { return row.length == 0; });
  std::ranges::stable_sort(rows, {}, &Row::remote);
  std::vector<Row> whole;
  for (const Row& row : rows) {
    Row* const last = whole.empty() ? nullptr : &whole.back();
    if (last && last->remote + last->length == row.remote && last->local + last->length == row.local)
      last->length += row.length;
    else
      whole.push_back(row);
  }
  whole.shrink_to_fit();
  return whole;
}

void check_numbers(const Offsets& numbers, std::size_t rows) {
  for (py::ssize_t i = 0; i < numbers.size(); ++i)
    if (numbers.data()[i] >= rows)
      throw Error(Errc::bounds, "index " + std::to_string(numbers.data()[i]) + ": the rows are 0 to " +
                                    std::to_string(static_cast<std::int64_t>(rows) - 1));
}

}  // namespace

Prepared::Prepared(Parts parts, const Rows& rows) : parts_(std::move(parts)) {
  rows_.reserve(rows.count);
  for (std::size_t i = 0; i < rows.count; ++i) {
    rows_.push_back(rows[i]);
    nbytes_ += rows[i].length;
  }
  joined_ = joined(rows_);
}

py::object Prepared::start(const py::object& self, const py::object& indices, const py::object& user_context,
                           const py::object& flags) const {
  ContextHandle& handle = context_handle(parts_.context.ptr());
  handle.check_open();
  if (!handle.finished->empty()) handle.finished->drain();
  const RowsCall call{.op = parts_.op,
                      .target = Target::of(parts_.peer, parts_.remote.ptr()),
                      .delivery = delivery_from(flags.ptr()),
                      .user_context = user_context.ptr()};
  LocalBuffer local;  // which this object keeps
  local.data = parts_.local.data;
  local.nbytes = parts_.local.nbytes;
  local.holder = Py_NewRef(self.ptr());
  OperationObject* started = nullptr;
  if (indices.is_none()) {
    started =
        start_rows(handle, call, std::move(local), joined_.size(), [&](std::size_t i) { return joined_[i]; });
  } else {
    const Offsets numbers = offsets_from(indices.ptr(), "indices");
    check_numbers(numbers, rows_.size());
    const std::uint64_t* const at = numbers.data();
    started = start_rows(handle, call, std::move(local), static_cast<std::size_t>(numbers.size()),
                         [&](std::size_t i) { return rows_[at[i]]; });
  }
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(started));
}

void bind_prepared(py::module_& m) {
  py::options texts;
  texts.disable_function_signatures();  // pybind11's own say nothing to inspect.signature
  py::class_<Prepared>(m, "Prepared", holds_objects<Prepared>(),
                       "Puts or gets of many pieces, made by Endpoint.prepare_write() or prepare_read() and "
                       "started as often as wanted.")
      .def("__len__", &Prepared::size)
      .def_property_readonly("nbytes", &Prepared::nbytes, "Bytes of all rows.")
      .def_property_readonly("peer", &Prepared::peer, "The handle of the peer.")
      .def_property_readonly("kind", &Prepared::kind, "The method that would start all rows at once.")
      .def_property_readonly("_context", &Prepared::context)
      .def(
          "start",
          [](const py::object& self, const py::object& indices, const py::object& context,
             const py::object& flags) {
            return self.cast<const Prepared&>().start(self, indices, context, flags);
          },
          py::arg("indices") = py::none(), py::arg("context") = py::none(), py::arg("flags") = py::none(),
          "start(self, indices=None, context=None, flags=None)\n--\n\n"
          "Starts all rows as one Operation, or those with these numbers: an array of integers, one of which "
          "may come several times. The memory is read, or written, until the operation is done.");
}

}  // namespace fab::python
