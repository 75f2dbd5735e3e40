#include "base/locks/mutex.h"
#include "base/memory/shared_memory.h"
#include "fabric/completion/log_thread.h"
#include "fabric/memory/raw_key.h"
#include "providers/providers.h"
#include "python/bind.h"

namespace fab::python {
namespace {

py::object nic_dict(const NicInfo& nic) {
  py::dict out;
  out["name"] = nic.name;
  out["driver"] = nic.driver;
  out["pci_address"] = nic.pci_address;
  out["state"] = nic.state;
  out["numa_node"] = nic.numa_node;
  out["speed_bits_per_second"] = nic.speed_bits_per_second;
  return out;
}

py::dict info_dict(const Info& info) {
  py::dict out;
  out["provider"] = info.provider;
  out["fabric"] = info.fabric;
  out["domain"] = info.domain;
  out["addr_format"] = info.addr_format;
  out["src_addr"] = info.src_addr;
  out["caps"] = info.caps;
  out["mr_mode"] = info.mr_mode;
  out["mr_key_size"] = info.mr_key_size;
  out["mr_iov_limit"] = info.mr_iov_limit;
  out["inject_size"] = info.inject_size;
  out["max_msg_size"] = info.max_msg_size;
  out["max_rma_size"] = info.max_rma_size;
  out["max_contexts"] = info.max_contexts;
  out["max_group_id"] = info.max_group_id;
  out["delivery"] = info.delivery;
  out["links"] = info.links;
  out["usable"] = info.usable;
  out["why"] = info.why;
  py::list nics;
  for (const NicInfo& nic : info.nics) nics.append(nic_dict(nic));
  out["nics"] = nics;
  return out;
}

// Every domain that this process has opened, so that none outlives the interpreter. The list is never freed.
struct OpenedDomains {
  Mutex mutex;
  std::vector<std::weak_ptr<DomainCore>> domains FAB_GUARDED_BY(mutex);
};
OpenedDomains& opened_domains() {
  static auto* const opened = new OpenedDomains;
  return *opened;
}

void close_all() {
  const WithoutGil without_gil;
  UniqueLock lock(opened_domains().mutex);
  const auto domains = std::exchange(opened_domains().domains, {});
  lock.unlock();
  for (const auto& opened : domains) {
    const auto domain = opened.lock();
    if (!domain) continue;
    domain->close(true);
    tell_logs(*domain);
  }
  LogThread::finish();
}

py::dict registrations(const DomainCore& domain) {
  py::dict out;
  for (const LinkRegistrations& link : domain.domain().registrations()) {
    py::dict counts;
    counts["held"] = link.held;
    counts["made"] = link.made;
    counts["reused"] = link.reused;
    out[shown(link.link)] = counts;
  }
  return out;
}

py::object cache_stats(const DomainCore& domain) {
  const DomainCache& cache = domain.registration_cache();
  CacheStats stats;
  if (cache.cache) {
    const WithoutGil without_gil;
    stats = cache.cache->stats();
  }
  py::dict out;
  out["monitor"] = cache.monitor;
  out["searches"] = stats.searches;
  out["hits"] = stats.hits;
  out["misses"] = stats.misses;
  out["evictions"] = stats.evictions;
  out["notifications"] = stats.notifications;
  out["cached_bytes"] = stats.cached_bytes;
  out["cached_count"] = stats.cached_count;
  out["idle_bytes"] = stats.idle_bytes;
  out["idle_count"] = stats.idle_count;
  return out;
}

py::list info_list(const std::vector<Info>& infos) {
  py::list out;
  for (const Info& info : infos) out.append(info_dict(info));
  return out;
}

// The function of a policy. Python owns it, through a PolicyOwner, so that the collector sees what it refers
// to, which may be the domain itself. The core's domain may live longer, in operations; it finds no function
// then.
class PolicySlot {
 public:
  explicit PolicySlot(py::function function) noexcept : function_(function.release().ptr()) {}
  ~PolicySlot() = default;  // the slot is empty by then, because its owner has gone
  PolicySlot(const PolicySlot&) = delete;
  PolicySlot& operator=(const PolicySlot&) = delete;

  // Needs the GIL. Nothing under the lock takes time or runs Python code.
  py::object get() const {
    const LockGuard lock(mutex_);
    return py::reinterpret_borrow<py::object>(function_.load());
  }
  PyObject* look() const noexcept { return function_.load(); }
  void clear() noexcept {
    PyObject* last;
    {
      const LockGuard lock(mutex_);
      last = function_.exchange(nullptr);
    }
    Py_XDECREF(last);
  }

 private:
  mutable Mutex mutex_;  // keeps the function alive until get() has its reference
  std::atomic<PyObject*> function_;
};

// The owner of a policy's function. Every Python object that can start operations of the domain holds it.
struct PolicyOwner {
  explicit PolicyOwner(py::function function) : slot(std::make_shared<PolicySlot>(std::move(function))) {}
  ~PolicyOwner() { clear(); }
  PolicyOwner(const PolicyOwner&) = delete;
  PolicyOwner& operator=(const PolicyOwner&) = delete;
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(slot->look());
    return 0;
  }
  void clear() const noexcept { slot->clear(); }

  const std::shared_ptr<PolicySlot> slot;
};

decltype(RailOptions::policy) policy_from(const std::shared_ptr<PolicySlot>& slot) {
  return [slot](std::uint64_t peer, const std::vector<std::string>& links) {
    const py::gil_scoped_acquire gil;
    const py::object function = slot->get();
    if (!function) return std::vector<double>{};
    const py::object weights = function(peer, links);
    if (weights.is_none()) return std::vector<double>{};
    try {
      return weights.cast<std::vector<double>>();
    } catch (const py::cast_error&) {
      throw Error(Errc::invalid, "rail_policy returned " + std::string(py::repr(weights)) + " for " +
                                     std::to_string(links.size()) +
                                     " rails; it returns a number for each, or None");
    }
  };
}

// Whether the cache is the processor's, the bytes of a cache line, and whether to check the program.
using NonCoherent = std::tuple<bool, std::uint32_t, bool>;

std::optional<CacheModel> cache_model(const std::optional<NonCoherent>& given) {
  if (!given) return std::nullopt;
  const auto [at_cpu, line, check] = *given;
  return CacheModel{
      .place = at_cpu ? CacheModel::Place::cpu : CacheModel::Place::device, .line = line, .check = check};
}

std::shared_ptr<DomainCore> open_listed_domain(const std::string& spec, DomainOptions options,
                                               RailOptions rails) {
  const auto domain =
      WithoutGil::run([&] { return open_domain(spec, std::move(options), std::move(rails)); });
  const LockGuard lock(opened_domains().mutex);
  std::erase_if(opened_domains().domains, [](const auto& opened) { return opened.expired(); });
  opened_domains().domains.push_back(domain);
  return domain;
}

bool emulates(DomainCore& domain) { return domain.emulation() != nullptr; }

}  // namespace

void bind_domain(py::module_& m) {
  py::class_<DomainCore, std::shared_ptr<DomainCore>>(m, "DomainCore",
                                                      py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("info",
                             [](const DomainCore& domain) { return info_dict(domain.domain().info()); })
      .def_property_readonly("closed", &DomainCore::closed)
      .def_property_readonly("needs_sync_rdma_read", emulates)
      .def_property_readonly("needs_sync_rdma_write", emulates)
      .def_property_readonly("regions", [](DomainCore& domain) { return domain.local_regions().size(); })
      .def_property_readonly("cache_stats", &cache_stats)
      .def_property_readonly("device_registrations", &registrations)
      .def_property_readonly("cache_warning",
                             [](const DomainCore& domain) { return domain.registration_cache().warning; })
      .def_property_readonly("raw_key_size",
                             [](const DomainCore& domain) {
                               return raw_key_size(domain.options().mr_mode, domain.options().mr_key_size);
                             })
      .def("check_open", &DomainCore::check_open)
      .def(
          "allocate",
          [](const DomainCore& domain, std::uint64_t nbytes) {
            domain.check_open();
            return allocate_shared(nbytes);
          },
          py::arg("nbytes"), py::call_guard<WithoutGil>())
      .def("next_endpoint_number",
           [](DomainCore& domain) { return domain.contexts().next_endpoint_number(); })
      .def(
          "bind_registrations",
          [](DomainCore& domain, std::shared_ptr<EventQueue> events) {
            domain.registrations().bind(std::move(events));
          },
          py::arg("events").none(true), "From now on registrations tell this queue; None: no longer.")
      .def(
          "map_key",
          [](DomainCore& domain, const py::bytes& raw) {
            const auto key = decode_raw_key(std::string_view(raw));
            if (!key)
              throw Error(
                  Errc::invalid,
                  "these " + std::to_string(std::string_view(raw).size()) +
                      " bytes are no raw key, or they were damaged on the way; pass what raw_attr() of "
                      "the target gave");
            return domain.post_rules().map_key(*key);
          },
          py::arg("raw_key"))
      .def_property_readonly("mapped_keys",
                             [](DomainCore& domain) { return domain.post_rules().mapped_keys(); })
      .def(
          "unmap_key", [](DomainCore& domain, std::uint64_t key) { domain.post_rules().unmap_key(key); },
          py::arg("key"))
      .def_property_readonly(
          "auth_key", [](DomainCore& domain) { return py::bytes(domain.auth_keys().own()); },
          "The domain's own, as this side shows it; empty: it asks for none.")
      .def_property_readonly("auth_key_count",
                             [](DomainCore& domain) { return domain.auth_keys().own_keys(); })
      .def(
          "add_auth_key",
          [](DomainCore& domain, const std::string& key, const std::string& former) {
            domain.check_open();
            return domain.auth_keys().add(key, former);
          },
          py::arg("key"), py::arg("former"), py::call_guard<WithoutGil>())
      .def(
          "use_auth_key",
          [](DomainCore& domain, const std::string& key) {
            domain.check_open();
            domain.auth_keys().use(key);
          },
          py::arg("key"), py::call_guard<WithoutGil>())
      .def(
          "remove_auth_key",
          [](DomainCore& domain, const std::string& key, bool end_streams) {
            domain.check_open();
            domain.auth_keys().remove(key, end_streams);
          },
          py::arg("key"), py::arg("end_streams"), py::call_guard<WithoutGil>())
      .def("open_counter", &DomainCore::open_counter)
      .def("open_event_queue", &DomainCore::open_event_queue, py::arg("losses"))
      .def(
          "open_completion_queue",
          [](DomainCore& domain, std::size_t size, bool forget_oldest) {
            return domain.open_completion_queue(size, forget_oldest ? CompletionQueue::WhenFull::forget_oldest
                                                                    : CompletionQueue::WhenFull::refuse);
          },
          py::arg("size"), py::arg("forget_oldest"))
      .def("progress", &DomainCore::progress, py::call_guard<WithoutGil>())
      .def(
          "close",
          [](DomainCore& domain, bool force) {
            domain.close(force);
            tell_logs(domain);
          },
          py::arg("force"), py::call_guard<WithoutGil>());

  py::class_<PolicyOwner>(m, "RailPolicy", holds_objects<PolicyOwner>(),
                          "The function that a domain asks about its rails, as long as this object is there.")
      .def(py::init<py::function>(), py::arg("function"));

  m.def("close_all", &close_all,
        "Closes every domain of this process that is still open. For the end of the interpreter.");
  m.def(
      "discover", [] { return info_list(WithoutGil::run([] { return discover(); })); },
      "Every provider and device of this build, usable here or not, as dicts.");
  m.def("configured_links", &configured_links, "$FI_LNX_PROV_LINKS, or an empty string.");
  m.def(
      "find_links",
      [](const std::string& spec) { return info_list(WithoutGil::run([&] { return find_links(spec); })); },
      py::arg("spec"));
  m.def(
      "open_domain",
      [](const std::string& spec, std::uint32_t mr_mode, std::string auth_key, bool encrypt, bool strict_keys,
         bool manual_progress, bool busy_progress, bool log_links, double peer_deadline, double rail_deadline,
         const PolicyOwner* rail_policy, std::uint32_t mr_key_size,
         const std::optional<NonCoherent>& non_coherent, std::map<std::string, std::string> settings) {
        return open_listed_domain(
            spec,
            {.mr_mode = mr_mode,
             .auth_key = std::move(auth_key),
             .encrypt = encrypt,
             .strict_keys = strict_keys,
             .manual_progress = manual_progress,
             .busy_progress = busy_progress,
             .log_links = log_links,
             .mr_key_size = mr_key_size,
             .non_coherent = cache_model(non_coherent),
             .peer_deadline = peer_deadline,
             .settings = std::move(settings)},
            {.policy = rail_policy ? policy_from(rail_policy->slot) : nullptr, .deadline = rail_deadline});
      },
      py::arg("spec"), py::kw_only(), py::arg("mr_mode"), py::arg("auth_key"), py::arg("encrypt"),
      py::arg("strict_keys"), py::arg("manual_progress"), py::arg("busy_progress"), py::arg("log_links"),
      py::arg("peer_deadline"), py::arg("rail_deadline"), py::arg("rail_policy"), py::arg("mr_key_size"),
      py::arg("non_coherent"), py::arg("settings"));
}

}  // namespace fab::python
