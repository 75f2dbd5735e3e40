#include "base/crypto/libcrypto.h"
#include "base/crypto/libssl.h"
#include "base/crypto/stretched_key.h"
#include "base/crypto/tls_kernel.h"
#include "fabric/types/versions.h"
#include "python/bind.h"

// The module does not need the GIL: what threads share is atomic, or guarded by a lock of its own or by the
// lock of its Python object.
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  using namespace fab::python;
  namespace versions = fab::versions;
  m.doc() = "The C++ core of pyfab. Programs use the names of the package, not these.";
  m.attr("__version__") = FAB_VERSION;
  m.attr("has_verbs_headers") = FAB_HAS_VERBS != 0;
  py::dict formats;  // in the words of docs/versions.md
  formats["wire"] = versions::kWire;
  formats["address"] = versions::kName;
  formats["address: in 56 bytes"] = versions::kCompactName;
  formats["address: network part"] = versions::kEndpointPart;
  formats["shared memory"] = versions::kSharedLayout;
  formats["named address vector"] = versions::kPeerFile;
  formats["remote region"] = versions::kRemoteRegion;
  formats["remote region: array"] = versions::kRemoteView;
  formats["address: network part by exchange"] = versions::kExchangePart;
  formats["verbs: call"] = versions::kVerbsCall;
  formats["verbs: exchange"] = versions::kVerbsExchange;
  formats["verbs: description of a region"] = versions::kVerbsDescription;
  formats["shuffle"] = versions::kShuffle;
  m.attr("versions") = formats;
  m.def("libssl_problem", [] { return fab::libssl_problem(); });
  m.def("kernel_seals", [] { return fab::kernel_seals(); });
  m.def("libcrypto_problem", [] { return fab::libcrypto_problem(); });
  m.def(
      "stretched_key",
      [](const py::bytes& key) {
        std::string text = key;
        {
          const py::gil_scoped_release released;
          text = fab::stretched_key(text);
        }
        return py::bytes(text);
      },
      py::arg("key"));
  m.attr("compiler") = "g++ " __VERSION__;
  prepare_buffers();
  bind_errors(m);
  bind_queues(m);
  bind_address_vector(m);
  bind_remote(m);
  bind_operation(m);
  bind_memory(m);
  bind_numpy_memory(m);
  bind_grants(m);
  bind_sync(m);
  bind_domain(m);
  bind_logs(m);
  bind_context(m);
  bind_prepared(m);
  bind_messages(m);
  bind_remote_array(m);
  bind_window(m);
  bind_gather(m);
}
