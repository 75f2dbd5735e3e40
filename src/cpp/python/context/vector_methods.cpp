#include <algorithm>
#include <array>

#include "python/context/context_object.h"

namespace fab::python {
namespace {

using Offsets = py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>;

// An array argument of write_many: unsigned 64-bit, one-dimensional. Negative and fractional numbers are
// refused.
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
  std::size_t step;  // 0: one value for all
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
    const Offsets remote_array = offsets_from(given[3], "remote_offsets"),
                  local_array = offsets_from(given[4], "local_offsets"),
                  length_array = offsets_from(given[5], "lengths");
    const auto rows = static_cast<std::size_t>(
        std::max({remote_array.ndim() ? remote_array.size() : 1, local_array.ndim() ? local_array.size() : 1,
                  length_array.ndim() ? length_array.size() : 1}));
    // A column of length 0 means no rows, and then every column that is no single number must be empty.
    const bool none = (remote_array.ndim() && remote_array.size() == 0) ||
                      (local_array.ndim() && local_array.size() == 0) ||
                      (length_array.ndim() && length_array.size() == 0);
    if (none && rows > 1)
      throw Error(Errc::invalid, "one of remote_offsets, local_offsets and lengths is empty, another has " +
                                     std::to_string(rows) + " entries");
    const std::size_t count = none ? 0 : rows;
    const Column remote = count ? column(remote_array, rows, "remote_offsets") : Column{nullptr, 0};
    const Column here = count ? column(local_array, rows, "local_offsets") : Column{nullptr, 0};
    const Column length = count ? column(length_array, rows, "lengths") : Column{nullptr, 0};
    check_rows(here, length, count, local.nbytes, "local");
    if (target.view) check_rows(remote, length, count, target.view->nbytes, "remote");
    const Delivery delivery = delivery_from(given[7]);
    std::uint64_t nbytes = 0;
    for (std::size_t i = 0; i < count; ++i) nbytes += length[i];
    const bool brings = given[8] && PyObject_IsTrue(given[8]) == 1;
    operation = prepare_operation(handle, op, peer, target, nbytes, given[6], brings);
    if (brings) operation->value = Py_NewRef(given[2]);
    // One part stands for the call itself, so that the operation cannot end between two batches.
    begin(*operation, static_cast<std::uint32_t>(count) + 1, context_number(handle, given[6]),
          handle.queue.get());

    std::array<Transfer, 256> batch;
    Transfer row{};
    row.operation = &operation->core;
    row.op = op;
    row.delivery = delivery;
    row.key = target.key;
    const bool long_work = count > 4096 || operation->nbytes > 64 * 1024;
    bool stands = true;
    for (std::size_t done = 0; done < count && stands;) {
      const std::size_t now = std::min(batch.size(), count - done);
      for (std::size_t i = 0; i < now; ++i) {
        row.local = local.data + here[done + i];
        row.remote = target.remote + remote[done + i];
        row.length = length[done + i];
        batch[i] = row;
      }
      try {
        stands = post_all(handle, peer, {batch.data(), now}, operation->core, long_work, done == 0);
      } catch (...) {
        WithoutGil::run([&] {
          handle.context->abandon(operation->core, static_cast<std::uint32_t>(count - done - now) + 1,
                                  Errc::canceled);
        });
        std::vector<LocalBuffer> kept;
        kept.push_back(std::move(local));
        launched(*operation, std::move(kept));
        throw;
      }
      done += now;
      if (!stands && done < count)
        WithoutGil::run([&] {
          handle.context->abandon(operation->core, static_cast<std::uint32_t>(count - done), Errc::peer_lost);
        });
    }
    WithoutGil::run([&] { handle.context->abandon(operation->core, 1, Errc::ok); });
    if (operation->phase.load() != OperationObject::kSettled) {
      std::vector<LocalBuffer> buffers;
      buffers.push_back(std::move(local));
      launched(*operation, std::move(buffers));
    }
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
