#pragma once

#include <cstdint>
#include <vector>

#include "python/context/rows.h"

namespace fab::python {

// Pieces of memory that go to or from one peer again and again: what write_many() and read_many() check and
// resolve in each call is done once. Immutable, so any number of threads may start it at once.
class Prepared {
 public:
  struct Parts {
    py::object context;  // through which it goes
    py::object remote;   // of the target
    PeerId peer;
    OpCode op;
    LocalBuffer local;
  };
  Prepared(Parts parts, const Rows& rows);  // rows that check_rows() has found good

  std::size_t size() const noexcept { return rows_.size(); }
  std::uint64_t nbytes() const noexcept { return nbytes_; }
  PeerId peer() const noexcept { return parts_.peer; }
  const py::object& context() const noexcept { return parts_.context; }
  const char* kind() const noexcept { return parts_.op == OpCode::write ? "write_many" : "read_many"; }
  // Starts all rows, or those with these numbers. `self` is the Python object of this.
  py::object start(const py::object& self, const py::object& indices, const py::object& user_context,
                   const py::object& flags) const;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(parts_.context.ptr());
    Py_VISIT(parts_.remote.ptr());
    return 0;
  }
  void clear() {
    const py::object last_context = std::move(parts_.context), last_remote = std::move(parts_.remote);
  }

 private:
  Parts parts_;
  std::vector<Row> rows_;    // by number
  std::vector<Row> joined_;  // all of them by place at the target, what goes on at both sides as one
  std::uint64_t nbytes_ = 0;
};

}  // namespace fab::python
