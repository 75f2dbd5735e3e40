#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "python/context/context_object.h"

namespace fab::python {

using Offsets = py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>;

// An array argument, as unsigned 64-bit numbers in one dimension. Negative and fractional numbers are
// refused.
Offsets offsets_from(PyObject* object, const char* what);

// One of many pieces that an operation moves: offsets and bytes.
struct Row {
  std::uint64_t remote, local, length;
};

struct Column {
  const std::uint64_t* data;
  std::size_t step;  // 1, or 0 if one value is for all rows
  std::uint64_t operator[](std::size_t i) const { return data[i * step]; }
};

// The rows of a call, in three columns.
struct Rows {
  Offsets remote_array, local_array, length_array;  // the arrays that the columns are views of
  std::size_t count = 0;
  Column remote{nullptr, 0}, local{nullptr, 0}, length{nullptr, 0};
  Row operator[](std::size_t i) const { return {remote[i], local[i], length[i]}; }
};

Rows rows_of(PyObject* remote_offsets, PyObject* local_offsets, PyObject* lengths);
// Throws Error(bounds) for a row that is not inside of both.
void check_rows(const Rows& rows, const LocalBuffer& local, const Target& target);
// What rows are pieces of. `name` is that of the call, for errors.
LocalBuffer one_piece(const char* name, PyObject* object, bool writable);
void check_contiguous(const char* name, const Target& target);

// Posts a transfer like `row` for each of the rows, whose offsets count from the addresses in `row`. The
// operation has one transfer more than there are rows; the caller ends that one after this has returned or
// thrown.
template <class At>
void post_rows(ContextHandle& handle, const OperationObject& object, Transfer row, std::size_t count,
               const At& at) {
  Operation& operation = *row.operation;
  const auto abandon = [&](std::size_t transfers, Errc error) {
    WithoutGil::run(
        [&] { handle.context->abandon(operation, static_cast<std::uint32_t>(transfers), error); });
  };
  std::byte* const local = row.local;
  const std::uint64_t remote = row.remote;
  const bool long_work = count > 4096 || object.nbytes > 64 * 1024;
  std::array<Transfer, 256> batch;
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(batch.size(), count - done);
    for (std::size_t i = 0; i < now; ++i) {
      const Row place = at(done + i);
      row.local = local + place.local;
      row.remote = remote + place.remote;
      row.length = place.length;
      batch[i] = row;
    }
    bool stands;
    try {
      stands = post_all(handle, object.peer, {{batch.data(), now}, long_work, done == 0}, operation);
    } catch (...) {
      if (done + now < count) abandon(count - done - now, Errc::canceled);
      throw;
    }
    done += now;
    if (stands) continue;
    if (done < count) abandon(count - done, Errc::peer_lost);
    return;
  }
}

// What the rows of one operation have in common.
struct RowsCall {
  OpCode op;
  Target target;
  Delivery delivery;
  PyObject* user_context;
  PyObject* brings = nullptr;  // what the result of the operation is; null: its Completion
};

// Starts one operation of `count` rows, at(i), of `local`, and returns a new reference to it.
template <class At>
OperationObject* start_rows(ContextHandle& handle, const RowsCall& call, LocalBuffer local, std::size_t count,
                            const At& at) {
  Transfer row{};
  row.op = call.op;
  row.delivery = call.delivery;
  row.key = call.target.key;
  row.local = local.data;
  row.remote = call.target.remote;
  std::uint64_t nbytes = 0;
  for (std::size_t i = 0; i < count; ++i) nbytes += at(i).length;
  OperationObject* const operation =
      prepare_operation(handle, {call.op, call.brings != nullptr}, call.target, nbytes, call.user_context);
  try {
    row.operation = &operation->core;
    if (call.brings) operation->value = Py_NewRef(call.brings);
    // One transfer stands for the call itself, so that the operation cannot end between two batches.
    begin(*operation, static_cast<std::uint32_t>(count) + 1, context_number(handle, call.user_context),
          handle.queue.get());
    const auto end_call = [&](Errc error) {
      WithoutGil::run([&] { handle.context->abandon(operation->core, 1, error); });
      if (operation->phase.load() == OperationObject::kSettled) return;
      std::vector<LocalBuffer> buffers;
      buffers.push_back(std::move(local));
      launched(*operation, std::move(buffers));
    };
    try {
      post_rows(handle, *operation, row, count, at);
    } catch (...) {
      end_call(Errc::canceled);
      throw;
    }
    end_call(Errc::ok);
    return operation;
  } catch (...) {
    Py_DECREF(reinterpret_cast<PyObject*>(operation));
    throw;
  }
}

}  // namespace fab::python
