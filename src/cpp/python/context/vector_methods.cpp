#include <algorithm>
#include <array>

#include "python/context/context_object.h"

namespace fab::python {
namespace {

using Offsets = py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>;

// An array argument of write_many() or read_many(), as unsigned 64-bit numbers in one dimension. Negative and
// fractional numbers are refused.
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

struct Column {
  const std::uint64_t* data;
  std::size_t step;  // 1, or 0 if one value is for all rows
  std::uint64_t operator[](std::size_t i) const { return data[i * step]; }
};

Column column(const Offsets& array, std::size_t rows, const char* what) {
  const auto size = static_cast<std::size_t>(array.size());
  if (array.ndim() == 0 || (size == 1 && rows != 1)) return {array.data(), 0};
  if (size != rows)
    throw Error(Errc::invalid, std::string(what) + " has " + std::to_string(size) +
                                   " entries, the other columns " + std::to_string(rows));
  return {array.data(), 1};
}

void check_rows(const Column& offsets, const Column& lengths, std::size_t rows, std::uint64_t limit,
                const char* what) {
  for (std::size_t i = 0; i < rows; ++i)
    if (offsets[i] > limit || lengths[i] > limit - offsets[i])
      throw Error(Errc::bounds, "row " + std::to_string(i) + ": " + std::to_string(lengths[i]) +
                                    " bytes at " + what + " offset " + std::to_string(offsets[i]) +
                                    " are not inside the " + std::to_string(limit) + " bytes there");
}

// The rows of a call, in three columns.
struct Rows {
  Offsets remote_array, local_array, length_array;  // the arrays that the columns are views of
  std::size_t count = 0;
  Column remote{nullptr, 0}, local{nullptr, 0}, length{nullptr, 0};
};

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

// Posts a transfer like `row` for each of the rows, whose offsets count from the addresses in `row`. The
// operation has one transfer more than there are rows; the caller ends that one after this has returned or
// thrown.
void post_rows(ContextHandle& handle, const OperationObject& object, Transfer row, const Rows& rows) {
  Operation& operation = *row.operation;
  const auto abandon = [&](std::size_t transfers, Errc error) {
    WithoutGil::run(
        [&] { handle.context->abandon(operation, static_cast<std::uint32_t>(transfers), error); });
  };
  std::byte* const local = row.local;
  const std::uint64_t remote = row.remote;
  const bool long_work = rows.count > 4096 || object.nbytes > 64 * 1024;
  std::array<Transfer, 256> batch;
  for (std::size_t done = 0; done < rows.count;) {
    const std::size_t now = std::min(batch.size(), rows.count - done);
    for (std::size_t i = 0; i < now; ++i) {
      row.local = local + rows.local[done + i];
      row.remote = remote + rows.remote[done + i];
      row.length = rows.length[done + i];
      batch[i] = row;
    }
    bool stands;
    try {
      stands = post_all(handle, object.peer, {batch.data(), now}, operation, long_work, done == 0);
    } catch (...) {
      if (done + now < rows.count) abandon(rows.count - done - now, Errc::canceled);
      throw;
    }
    done += now;
    if (stands) continue;
    if (done < rows.count) abandon(rows.count - done, Errc::peer_lost);
    return;
  }
}

PyObject* start_many(const char* name, OpCode op, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                     PyObject* kwnames) {
  static const char* const names[] = {"peer",    "remote",  "local", "remote_offsets", "local_offsets",
                                      "lengths", "context", "flags", "_brings"};
  PyObject* given[9];
  if (!parse_arguments(name, names, 6, args, nargs, kwnames, given)) return nullptr;
  OperationObject* operation = nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    if (!handle.finished->empty()) handle.finished->drain();
    const PeerId peer = peer_from(given[0]);
    const Target target = Target::of(given[1]);
    LocalBuffer local = LocalBuffer::of(given[2], op == OpCode::read);
    if (!local.pieces.empty())
      throw Error(Errc::invalid, std::string(name) + " takes one local buffer, not a list");
    if (target.view && !target.view->contiguous)
      throw Error(
          Errc::invalid,
          std::string(name) + " takes a contiguous remote array; pass the whole region and offsets into it");
    const Rows rows = rows_of(given[3], given[4], given[5]);
    check_rows(rows.local, rows.length, rows.count, local.nbytes, "local");
    if (target.view) check_rows(rows.remote, rows.length, rows.count, target.view->nbytes, "remote");
    Transfer row{};
    row.op = op;
    row.delivery = delivery_from(given[7]);
    row.key = target.key;
    row.local = local.data;
    row.remote = target.remote;
    std::uint64_t nbytes = 0;
    for (std::size_t i = 0; i < rows.count; ++i) nbytes += rows.length[i];
    const bool brings = given[8] && PyObject_IsTrue(given[8]) == 1;
    operation = prepare_operation(handle, op, peer, target, nbytes, given[6], brings);
    row.operation = &operation->core;
    if (brings) operation->value = Py_NewRef(given[2]);
    // One transfer stands for the call itself, so that the operation cannot end between two batches.
    begin(*operation, static_cast<std::uint32_t>(rows.count) + 1, context_number(handle, given[6]),
          handle.queue.get());
    const auto end_call = [&](Errc error) {
      WithoutGil::run([&] { handle.context->abandon(operation->core, 1, error); });
      if (operation->phase.load() == OperationObject::kSettled) return;
      std::vector<LocalBuffer> buffers;
      buffers.push_back(std::move(local));
      launched(*operation, std::move(buffers));
    };
    try {
      post_rows(handle, *operation, row, rows);
    } catch (...) {
      end_call(Errc::canceled);
      throw;
    }
    end_call(Errc::ok);
    return reinterpret_cast<PyObject*>(operation);
  } catch (...) {
    set_python_error();
    Py_XDECREF(reinterpret_cast<PyObject*>(operation));
    return nullptr;
  }
}

PyObject* write_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return start_many("write_many", OpCode::write, self, args, nargs, kwnames);
}
PyObject* read_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return start_many("read_many", OpCode::read, self, args, nargs, kwnames);
}

}  // namespace

PyMethodDef vector_methods[] = {
    {"write_many", method(write_many), METH_FASTCALL | METH_KEYWORDS,
     "write_many($self, /, peer, remote, local, remote_offsets, local_offsets, lengths, context=None, "
     "flags=None, _brings=False)\n--\n\n"
     "Starts many puts as one Operation: row i moves lengths[i] bytes from local_offsets[i] of `local` to "
     "remote_offsets[i] of\n"
     "`remote`. Offsets and lengths are integer arrays in bytes; a single number counts for all rows. All "
     "rows are checked before\n"
     "anything moves; a row that the target refuses fails the operation, the others are done."},
    {"read_many", method(read_many), METH_FASTCALL | METH_KEYWORDS,
     "read_many($self, /, peer, remote, local, remote_offsets, local_offsets, lengths, context=None, "
     "flags=None, _brings=False)\n--\n\n"
     "Starts many gets as one Operation; arguments as for write_many()."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace fab::python
