#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <tuple>

#include "python/bind.h"

namespace fab::python {
namespace {

using Fields = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // the three numbers of a triplet

std::vector<Triplet> triplets_from(const py::list& segments) {
  std::vector<Triplet> triplets;
  triplets.reserve(segments.size());
  for (const py::handle segment : segments) {
    const auto [context, address, length] = segment.cast<Fields>();
    triplets.push_back({context, address, length});
  }
  return triplets;
}

// Triplets of the type `plain`, which hold their numbers ready in native form: ten of them cost little more
// than the call. Returns nothing if one has another type.
std::optional<std::vector<Triplet>> plain_triplets_from(const py::list& segments, const py::type& plain) {
  static PyObject* const name = PyUnicode_InternFromString("_native");
  std::vector<Triplet> triplets;
  triplets.reserve(segments.size());
  for (const py::handle segment : segments) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(segment.ptr())) != plain.ptr()) return std::nullopt;
    const auto native = py::reinterpret_steal<py::object>(PyObject_GetAttr(segment.ptr(), name));
    if (!native) throw py::error_already_set();
    std::array<std::uint64_t, 3> numbers{};
    if (!PyBytes_Check(native.ptr()) || PyBytes_GET_SIZE(native.ptr()) != sizeof numbers) return std::nullopt;
    std::memcpy(numbers.data(), PyBytes_AS_STRING(native.ptr()), sizeof numbers);
    triplets.push_back({static_cast<std::uint32_t>(numbers[0]), numbers[1], numbers[2]});
  }
  return triplets;
}

py::list reports_list(const SyncReports& reports) {
  static constexpr const char* kKinds[] = {"missing", "late", "needless"};
  static constexpr const char* kEvents[] = {"get", "put", "atomic", "sync_rdma_read", "sync_rdma_write"};
  py::list out;
  for (const SyncReport& report : reports)
    out.append(py::make_tuple(kKinds[static_cast<std::size_t>(report.kind)],
                              report.side == SyncSide::read ? "read" : "write", report.region, report.start,
                              report.end, kEvents[static_cast<std::size_t>(report.event)]));
  return out;
}

py::list synchronise(DomainCore& domain, bool write_side, std::span<const Triplet> triplets,
                     bool deliberate) {
  const auto call = [&] {
    return write_side ? domain.sync_rdma_write(triplets, deliberate)
                      : domain.sync_rdma_read(triplets, deliberate);
  };
  try {
    if (!domain.emulation()) return reports_list(call());
    SyncReports reports;
    {
      const WithoutGil without_gil;
      reports = call();
    }
    return reports_list(reports);
  } catch (const SegmentError& error) {
    const py::object raised = make_error(error.code(), error.reason());
    raised.attr("index") = error.index();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw py::error_already_set();
  }
}

py::dict sync_stats(DomainCore& domain) {
  const SyncStats stats = domain.emulation() ? domain.emulation()->stats() : SyncStats{};
  py::dict out;
  out["read_calls"] = stats.read_calls;
  out["write_calls"] = stats.write_calls;
  out["flushes"] = stats.flushes;
  out["invalidations"] = stats.invalidations;
  out["bytes_to_device"] = stats.bytes_to_device;
  out["bytes_to_cpu"] = stats.bytes_to_cpu;
  return out;
}

// The triplets of [offset, offset + length) of a region: one for each of its buffers that the range touches.
// A closed region has them too. A range outside of the region gives a triplet that no call accepts.
std::vector<Fields> triplets_of(const MemoryRegion& region, std::uint64_t offset, std::uint64_t length) {
  const std::uint32_t context = region.id();
  if (offset > region.length() || length > region.length() - offset)
    return {{0, region.address() + offset, length}};
  std::vector<Fields> found;
  for (const iovec& buffer : region.buffers()) {
    const std::uint64_t size = buffer.iov_len;
    if (offset < size && length != 0) {
      const std::uint64_t part = std::min(length, size - offset);
      found.emplace_back(context, reinterpret_cast<std::uint64_t>(buffer.iov_base) + offset, part);
      length -= part;
    }
    offset -= std::min(offset, size);
  }
  return found;
}

}  // namespace

void bind_sync(py::module_& m) {
  m.def(
      "synchronise",
      [](DomainCore& domain, bool write_side, const py::list& segments, bool deliberate) {
        return synchronise(domain, write_side, triplets_from(segments), deliberate);
      },
      py::arg("domain"), py::arg("write_side"), py::arg("segments"), py::arg("deliberate"),
      "Segments are (lmr_context, address, length). Returns the checker's reports: (kind, side, region, "
      "start, end, operation). A refused segment is the error's index.");
  m.def(
      "synchronise_plain",
      [](DomainCore& domain, bool write_side, const py::list& segments, bool deliberate,
         const py::type& plain) -> std::optional<py::list> {
        const auto triplets = plain_triplets_from(segments, plain);
        if (!triplets) return std::nullopt;
        return synchronise(domain, write_side, *triplets, deliberate);
      },
      py::arg("domain"), py::arg("write_side"), py::arg("segments"), py::arg("deliberate"), py::arg("plain"),
      "The same for segments of the type `plain`, which have (lmr_context, address, length) as 24 bytes in "
      "_native; None, and nothing was done, if there is another among them.");
  m.def(
      "missing_syncs",
      [](DomainCore& domain, bool open) {
        return reports_list(domain.emulation() ? domain.emulation()->missing(open) : SyncReports{});
      },
      py::arg("domain"), py::arg("open"));
  m.def("sync_stats", &sync_stats, py::arg("domain"));
  m.def(
      "regions_holding",
      [](DomainCore& domain, std::uint64_t address, std::uint64_t nbytes) {
        return domain.local_regions().holding(address, nbytes);
      },
      py::arg("domain"), py::arg("address"), py::arg("nbytes"));
  m.def("triplets_of", &triplets_of, py::arg("region"), py::arg("offset"), py::arg("nbytes"));
}

}  // namespace fab::python
