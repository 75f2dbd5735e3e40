#include "fabric/domain/memory_region.h"
#include "python/memory/remote_view.h"

// What `Grant` and `MemoryRegion.grant` of Python are made of.
namespace fab::python {
namespace {

std::shared_ptr<Grant> grant(MemoryRegion& region, std::uint32_t access, std::uint64_t offset,
                             std::uint64_t length, std::vector<std::string> peers,
                             std::optional<double> seconds) {
  return grant_of(region, {.access = access,
                           .offset = offset,
                           .length = length,
                           .peers = std::move(peers),
                           .until = Deadline::in_seconds(seconds)});
}

std::vector<py::bytes> peers_of(const Grant& grant) {
  return {grant.terms().peers.begin(), grant.terms().peers.end()};
}

// None: for ever.
std::optional<double> seconds_left(const Grant& grant) {
  const Deadline until = grant.terms().until;
  if (until.never()) return {};
  return std::max(0.0, std::chrono::duration<double>(until.at() - Clock::now()).count());
}

// 0 when no access is running any more, or after so many seconds the process id of a peer in the middle of
// one.
std::int32_t revoke(Grant& grant, double seconds) {
  for (;;) {
    if (wait_interruptibly([&](Deadline until) { return grant.revoke(until); },
                           Deadline::in_seconds(seconds)))
      return 0;
    if (const std::int32_t process = grant.peer_inside()) return process;
  }
}

}  // namespace

void bind_grants(py::module_& m) {
  py::class_<Grant, std::shared_ptr<Grant>>(m, "GrantCore", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("access", [](const Grant& grant) { return grant.terms().access; })
      .def_property_readonly("offset", [](const Grant& grant) { return grant.terms().offset; })
      .def_property_readonly("nbytes", [](const Grant& grant) { return grant.terms().length; })
      .def_property_readonly("peers", &peers_of, "Their addresses; empty: whoever has the key.")
      .def_property_readonly("seconds_left", &seconds_left)
      .def_property_readonly("key", &Grant::key)
      .def_property_readonly("over", &Grant::over)
      .def("revoke", &revoke, py::arg("seconds"),
           "Returns 0 when no access is running any more, or after so many seconds the process id of a peer "
           "in "
           "the middle of one; then, or interrupted, it can be called again.")
      .def(
          "remote",
          [](const Grant& grant, const py::object& dtype, const std::vector<std::int64_t>& shape) {
            return RemoteView::of(grant.remote(), dtype, shape);
          },
          py::arg("dtype"), py::arg("shape"));
  m.def("grant", &grant, py::arg("region"), py::kw_only(), py::arg("access"), py::arg("offset"),
        py::arg("nbytes"), py::arg("peers"), py::arg("seconds"), py::call_guard<WithoutGil>());
  m.def("grants_of", &grants_of, py::arg("region"), py::call_guard<WithoutGil>(),
        "Those that may still be used.");
}

}  // namespace fab::python
