#include <algorithm>
#include <limits>
#include <string_view>

#include "base/memory/shared_pool.h"
#include "python/memory/buffers.h"

// NumPy's data allocation, as of version 1.22 (NEP 49): an array takes and frees its memory by the handler
// that was in force in its thread when it was made.
namespace fab::python {
namespace {

// PyDataMem_Handler of NumPy's C interface.
struct Handler {
  char name[127];
  std::uint8_t version;
  void* context;
  void* (*allocate)(void* context, std::size_t length);
  void* (*allocate_zeroed)(void* context, std::size_t count, std::size_t length);
  void* (*reallocate)(void* context, void* piece, std::size_t length);
  void (*free)(void* context, void* piece, std::size_t length);
};

void* allocate(void*, std::size_t length) { return shared_pool().allocate(length); }
void* allocate_zeroed(void*, std::size_t count, std::size_t length) {
  if (length != 0 && count > std::numeric_limits<std::size_t>::max() / length) return nullptr;
  return shared_pool().allocate(count * length, true);
}
void* reallocate(void*, void* piece, std::size_t length) { return shared_pool().reallocate(piece, length); }
void free_piece(void*, void* piece, std::size_t) { shared_pool().free(piece); }

// Arrays hold the capsule, and may outlive the module: it is never freed.
PyObject* handler_capsule() {
  static Handler handler = [] {
    Handler made{{}, 1, nullptr, allocate, allocate_zeroed, reallocate, free_piece};
    constexpr std::string_view kName = "pyfab";
    std::ranges::copy(kName, made.name);
    return made;
  }();
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  if (!capsule) throw py::error_already_set();
  return capsule;
}

}  // namespace

void bind_numpy_memory(py::module_& m) {
  m.def(
      "set_numpy_memory",
      [](const py::object& handler) {
        constexpr std::size_t kSetHandler =
            304;  // place of PyDataMem_SetHandler in NumPy's table of functions
        const auto set = reinterpret_cast<PyObject* (*)(PyObject*)>(numpy_functions()[kSetHandler]);
        PyObject* const former = set(handler.is_none() ? handler_capsule() : handler.ptr());
        if (!former) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(former);
      },
      py::arg("handler").none(true),
      "From now on this thread's arrays are made by `handler`, which an earlier call returned, or in memory "
      "that "
      "peers map (None). Returns the former one.");
  m.def(
      "numpy_memory_of",
      [](std::uint64_t address, std::uint64_t nbytes) {
        return shared_pool().holder(reinterpret_cast<const void*>(address), nbytes);
      },
      py::arg("address"), py::arg("nbytes"));
}

}  // namespace fab::python
