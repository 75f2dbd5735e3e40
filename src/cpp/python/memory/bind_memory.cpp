#include <fcntl.h>
#include <linux/dma-buf.h>

#include "base/memory/foreign_file.h"
#include "base/memory/shared_memory.h"
#include "fabric/memory/dma_buf.h"
#include "python/memory/buffers.h"
#include "python/memory/remote_view.h"

namespace fab::python {
namespace {

// Keeps exporters of buffers alive and their memory in place. The destructor takes the GIL, so any thread may
// drop the last reference.
struct Exporters {
  std::vector<Py_buffer> views;
  std::vector<py::object> hidden;  // dma-bufs that the processor cannot reach
  // NOLINTNEXTLINE(bugprone-exception-escape): taking the GIL throws only while the interpreter breaks
  ~Exporters() {
    const py::gil_scoped_acquire acquire;
    for (Py_buffer& view : views) PyBuffer_Release(&view);
    hidden.clear();
  }
};

// Memory as the buffer protocol gives it: C-contiguous, and writable if that is asked for.
iovec export_buffer(Exporters& exporters, py::handle object, bool writable) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_ND | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    const std::string type = Py_TYPE(object.ptr())->tp_name;
    PyErr_Clear();
    if (!PyObject_CheckBuffer(object.ptr()))
      throw Error(Errc::invalid, "cannot register an object of type " + type +
                                     ": pass a NumPy array, any other buffer, or a list of buffers");
    if (writable && PyObject_GetBuffer(object.ptr(), &view, PyBUF_ND) == 0) {
      PyBuffer_Release(&view);
      throw Error(
          Errc::access,
          "the " + type +
              " is read-only, and RECV, READ and REMOTE_WRITE would write into it; leave these rights out");
    }
    PyErr_Clear();
    throw Error(
        Errc::invalid,
        "the " + type +
            " is not C-contiguous; register numpy.ascontiguousarray(a), or the array that it is a view of");
  }
  exporters.views.push_back(view);
  return {view.buf, static_cast<std::size_t>(view.len)};
}

std::shared_ptr<MemoryRegion> register_memory(const std::shared_ptr<DomainCore>& domain,
                                              const py::list& buffers, std::uint32_t access,
                                              const py::object& key, std::uint32_t flags,
                                              std::vector<std::string> auth_keys,
                                              const std::shared_ptr<SharedMemory>& memory,
                                              std::uint64_t file_offset, bool coherent, bool exempt) {
  domain->check_open();
  constexpr std::uint32_t kWriting = access::kRecv | access::kRead | access::kRemoteWrite;
  auto exporters = std::make_shared<Exporters>();
  MemoryRegion::Parameters parameters;
  for (const py::handle buffer : buffers) {
    if (PyTuple_Check(buffer.ptr())) {  // an address and a length
      const auto [address, length] = buffer.cast<std::pair<std::uint64_t, std::uint64_t>>();
      parameters.buffers.push_back({reinterpret_cast<void*>(address), static_cast<std::size_t>(length)});
    } else if (py::isinstance<DmaBuf>(buffer) && buffer.cast<const DmaBuf&>().hidden()) {
      const std::span<std::byte> bytes = buffer.cast<const DmaBuf&>().bytes();
      parameters.buffers.push_back({bytes.data(), bytes.size()});
      exporters->hidden.push_back(py::reinterpret_borrow<py::object>(buffer));
    } else {
      parameters.buffers.push_back(export_buffer(*exporters, buffer, (access & kWriting) != 0));
    }
  }
  parameters.access = access;
  parameters.flags = flags;
  parameters.auth_keys = std::move(auth_keys);
  parameters.coherent = coherent;
  parameters.exempt = exempt;
  if (!key.is_none()) {
    parameters.requested_key = key.cast<std::uint64_t>();
    if (parameters.requested_key == kNoKey)
      throw Error(Errc::key_rejected, "KEY_NOTAVAIL is not a key; keys run from 0 to 2**64 - 2");
  }
  if (memory) {
    parameters.file = memory->file.get();
    parameters.file_offset = file_offset;
  }
  parameters.keep_alive =
      std::make_shared<std::pair<std::shared_ptr<Exporters>, std::shared_ptr<SharedMemory>>>(exporters,
                                                                                             memory);
  const WithoutGil without_gil;  // registering large memory takes time
  return domain->register_memory(std::move(parameters));
}

// The base class of Python's MemoryRegion, which gives its memory as a buffer. Defining `__buffer__` in
// Python would need Python 3.12.
int memory_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  PyObject* memory = PyObject_CallMethod(self, "_only_buffer", nullptr);
  if (!memory) return -1;
  const int result = PyObject_GetBuffer(memory, view, flags);
  Py_DECREF(memory);
  return result;
}

PyType_Slot memory_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(memory_getbuffer)},
    {Py_tp_doc, const_cast<char*>("Gives the memory that _only_buffer() names as a buffer.")},
    {0, nullptr}};
PyType_Spec memory_spec = {"pyfab._core.Exporter", sizeof(PyObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, memory_slots};

}  // namespace

void bind_memory(py::module_& m) {
  m.def(
      "open_memory_of",
      [](int pid, int number) {
        ForeignFile found = open_foreign(pid, number, ForeignKind::sealed_memory, O_RDWR);
        if (!found.fd.valid())
          throw Error(shortage_or(found.error, Errc::not_supported),
                      "process " + std::to_string(pid) + " " + found.why());
        return found.fd.release();
      },
      py::arg("pid"), py::arg("number"),
      "A descriptor of the memory file that a process of this user has open, which cannot shrink.");
  PyObject* exporter = PyType_FromSpec(&memory_spec);
  if (!exporter) throw py::error_already_set();
  m.attr("Exporter") = py::reinterpret_steal<py::object>(exporter);
  py::class_<SharedMemory, std::shared_ptr<SharedMemory>>(m, "SharedMemory", py::buffer_protocol())
      .def_property_readonly(
          "address",
          [](const SharedMemory& memory) { return reinterpret_cast<std::uint64_t>(memory.mapping.data()); })
      .def_property_readonly("nbytes", [](const SharedMemory& memory) { return memory.mapping.size(); })
      .def_property_readonly(
          "fd", [](const SharedMemory& memory) { return memory.file.get(); },
          "Of the file behind it, which processes of this user can open through /proc.")
      .def_buffer([](SharedMemory& memory) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.mapping.data()),
                               static_cast<py::ssize_t>(memory.mapping.size()));
      });

  py::class_<DmaBuf, std::shared_ptr<DmaBuf>>(m, "DmaBufCore", py::buffer_protocol())
      .def(py::init<int, std::uint64_t, std::optional<std::uint64_t>>(), py::arg("fd"), py::arg("offset"),
           py::arg("length"))
      .def_property_readonly("fd", &DmaBuf::fd)
      .def_property_readonly("nbytes", [](const DmaBuf& memory) { return memory.bytes().size(); })
      .def_property_readonly("hidden", &DmaBuf::hidden)
      .def(
          "access",
          [](const DmaBuf& memory, bool write, bool begin) {
            const std::uint64_t flags = (write ? DMA_BUF_SYNC_RW : DMA_BUF_SYNC_READ) |
                                        (begin ? DMA_BUF_SYNC_START : DMA_BUF_SYNC_END);
            wait_interruptibly([&](Deadline) { return memory.sync(flags); }, {});
          },
          py::arg("write"), py::arg("begin"), "Begins or ends accesses of processors.")
      .def_buffer([](DmaBuf& memory) {
        if (memory.hidden()) throw Error(Errc::not_supported, "only devices reach the memory");
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.bytes().data()),
                               static_cast<py::ssize_t>(memory.bytes().size()), !memory.writable());
      });

  py::class_<MemoryRegion, std::shared_ptr<MemoryRegion>>(m, "MemoryRegionCore",
                                                          py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("id", &MemoryRegion::id)
      .def_property_readonly("desc", &MemoryRegion::descriptor)
      .def_property_readonly(
          "registering",
          [](const MemoryRegion& region) { return region.state() == MemoryRegion::State::registering; })
      .def("settle", &MemoryRegion::settle, py::call_guard<WithoutGil>(),
           "Returns when the registration is complete, or has failed.")
      .def_property_readonly("key", &MemoryRegion::key)
      .def("raw_key", [](const MemoryRegion& region) { return py::bytes(region.raw_key()); })
      .def_property_readonly("base", &MemoryRegion::base)
      .def_property_readonly("address", &MemoryRegion::address)
      .def_property_readonly("nbytes", &MemoryRegion::length)
      .def_property_readonly("enabled", &MemoryRegion::enabled)
      .def_property_readonly("closed", &MemoryRegion::closed)
      .def("bind", &MemoryRegion::bind, py::arg("counter"), py::call_guard<WithoutGil>())
      .def("bind_endpoint", &MemoryRegion::bind_endpoint, py::arg("number"), py::call_guard<WithoutGil>())
      .def(
          "admit",
          [](MemoryRegion& region, const std::vector<std::string>& auth_keys) { region.admit(auth_keys); },
          py::arg("auth_keys"), py::call_guard<WithoutGil>())
      .def("enable", &MemoryRegion::enable, py::call_guard<WithoutGil>())
      .def(
          "refresh",
          [](MemoryRegion& region, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& parts) {
            std::vector<RegionSpan> spans;
            spans.reserve(parts.size());
            for (const auto& [offset, length] : parts) spans.push_back({offset, length});
            wait_interruptibly([&](Deadline until) { return region.refresh(spans, until); }, {});
          },
          py::arg("parts"), "(offset, length) of each; an empty list means all.")
      .def(
          "close",
          [](MemoryRegion& region, double seconds) -> std::int32_t {
            for (;;) {
              if (wait_interruptibly([&](Deadline until) { return region.close(until); },
                                     Deadline::in_seconds(seconds)))
                return 0;
              if (const std::int32_t process = region.peer_inside()) return process;
            }
          },
          py::arg("seconds"),
          "Returns 0 when no access is running any more, or after so many seconds the process id of a peer "
          "in "
          "the middle of one; then, or interrupted, it can be called again.")
      .def_property_readonly(
          "released",
          [](const MemoryRegion& region) { return region.state() == MemoryRegion::State::closed; })
      .def(
          "remote",
          [](MemoryRegion& region, const py::object& dtype, const std::vector<std::int64_t>& shape) {
            return RemoteView::of(WithoutGil::run([&] { return region.remote(); }), dtype, shape);
          },
          py::arg("dtype"), py::arg("shape"));

  m.def("register_memory", &register_memory, py::arg("domain"), py::arg("buffers"), py::kw_only(),
        py::arg("access"), py::arg("key"), py::arg("flags"), py::arg("auth_keys"),
        py::arg("memory").none(true), py::arg("file_offset"), py::arg("coherent"), py::arg("exempt"));
}

}  // namespace fab::python
