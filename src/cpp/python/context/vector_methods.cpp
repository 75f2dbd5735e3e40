#include "python/context/context_object.h"
#include "python/context/prepared.h"
#include "python/context/rows.h"

namespace fab::python {
namespace {

// The first six arguments of the calls below, checked.
struct Many {
  Target target;
  LocalBuffer local;
  Rows rows{};
};

Many many_of(const char* name, OpCode op, PyObject* const* given) {
  Many many{.target = Target::of(peer_from(given[0]), given[1]),
            .local = one_piece(name, given[2], op == OpCode::read)};
  check_contiguous(name, many.target);
  many.rows = rows_of(given[3], given[4], given[5]);
  check_rows(many.rows, many.local, many.target);
  return many;
}

PyObject* start_many(const char* name, OpCode op, PyObject* self, const Passed& passed) {
  static const char* const names[] = {"peer",    "remote",  "local", "remote_offsets", "local_offsets",
                                      "lengths", "context", "flags", "_brings"};
  PyObject* given[9];
  if (!parse_arguments(name, names, 6, passed, given)) return nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    if (!handle.finished->empty()) handle.finished->drain();
    Many many = many_of(name, op, given);
    const Rows& rows = many.rows;
    const bool brings = given[8] && PyObject_IsTrue(given[8]) == 1;
    return reinterpret_cast<PyObject*>(
        start_rows(handle, {op, many.target, delivery_from(given[7]), given[6], brings ? given[2] : nullptr},
                   std::move(many.local), rows.count, [&](std::size_t i) { return rows[i]; }));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* prepare_many(const char* name, OpCode op, PyObject* self, const Passed& passed) {
  static const char* const names[] = {"peer",           "remote",        "local",
                                      "remote_offsets", "local_offsets", "lengths"};
  PyObject* given[6];
  if (!parse_arguments(name, names, 6, passed, given)) return nullptr;
  try {
    context_handle(self).check_open();
    Many many = many_of(name, op, given);
    Prepared::Parts parts{.context = py::reinterpret_borrow<py::object>(self),
                          .remote = py::reinterpret_borrow<py::object>(given[1]),
                          .peer = many.target.peer,
                          .op = op,
                          .local = std::move(many.local)};
    return py::cast(std::make_unique<Prepared>(std::move(parts), many.rows)).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* prepare_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return prepare_many("prepare_write", OpCode::write, self, {args, nargs, kwnames});
}
PyObject* prepare_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return prepare_many("prepare_read", OpCode::read, self, {args, nargs, kwnames});
}
PyObject* write_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return start_many("write_many", OpCode::write, self, {args, nargs, kwnames});
}
PyObject* read_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return start_many("read_many", OpCode::read, self, {args, nargs, kwnames});
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
    {"prepare_write", method(prepare_write), METH_FASTCALL | METH_KEYWORDS,
     "prepare_write($self, /, peer, remote, local, remote_offsets, local_offsets, lengths)\n--\n\n"
     "Makes a Prepared, which starts these puts as often as wanted. Arguments as for write_many()."},
    {"prepare_read", method(prepare_read), METH_FASTCALL | METH_KEYWORDS,
     "prepare_read($self, /, peer, remote, local, remote_offsets, local_offsets, lengths)\n--\n\n"
     "Makes a Prepared, which starts these gets as often as wanted. Arguments as for write_many()."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace fab::python
