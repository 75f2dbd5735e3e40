#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libfabric/fabric.h"
#include "libfabric/info.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/loader.h"
#include "libfabric/plugin/settings.h"
#include "providers/providers.h"

// The way in: libfabric loads this library and calls fi_prov_ini().
namespace fab::fi {
namespace {

// The links of each domain that is offered. Socket addresses lead to one tcp link, so each tcp link of the
// configured ones makes a domain of its own there. Where there is none, shared memory leads to this host.
std::vector<Info> offered_links(SocketWish& sockets) {
  std::vector<Info> all = find_links(configured_links_or_default());
  if (!sockets.wanted()) return all;
  std::set<std::string> names;
  for (const Info& links : all)
    for (const std::string& link : links.links)
      if (link.starts_with("tcp")) names.insert(link);
  if (names.empty()) {
    std::erase_if(all, [](const Info& links) { return links.links != std::vector<std::string>{"shm"}; });
    if (all.empty())
      throw Error(Errc::no_data,
                  "addresses of hosts need a tcp link, or shm alone; PYFAB_FI_LINKS has neither");
    sockets = sockets.on_node();
    return all;
  }
  all.clear();
  for (const std::string& name : names)
    for (Info& links : find_links(name)) all.push_back(std::move(links));
  return all;
}

int getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
            const fi_info* hints, fi_info** out) {
  return boundary(FI_LOG_FABRIC, "fi_getinfo", [&] {
    SocketWish sockets = socket_wish(node, service, flags, hints);
    std::vector<InfoPtr> found;
    std::string why;
    for (const Info& links : offered_links(sockets))
      if (InfoPtr info = offer(links, version, hints, sockets, why)) found.push_back(std::move(info));
    if (found.empty()) {
      log(FI_LOG_INFO, FI_LOG_FABRIC, "fi_getinfo: not what the hints ask for: " + why);
      return -FI_ENODATA;
    }
    fi_info* list = nullptr;
    for (; !found.empty(); found.pop_back()) {
      found.back()->next = list;
      list = found.back().release();
    }
    *out = list;
    return 0;
  });
}

int fabric(fi_fabric_attr* attr, fid_fabric** out, void* context) {
  return boundary(FI_LOG_FABRIC, "fi_fabric", [&] { return Fabric::open(*attr, context, out); });
}

void cleanup() {}

// Of several providers of one name, libfabric takes the one of the highest version: with a name of another
// provider, this one takes its place.
std::uint32_t version_of(std::string_view name) {
  if (name != "pyfab") return FI_VERSION(999, 0);
  constexpr std::string_view kVersion = FAB_VERSION;
  unsigned major = 0, minor = 0;
  const auto read = std::from_chars(kVersion.data(), kVersion.data() + kVersion.size(), major);
  std::from_chars(read.ptr + 1, kVersion.data() + kVersion.size(), minor);
  return FI_VERSION(major, minor);
}

}  // namespace
}  // namespace fab::fi

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini() {
  using namespace fab::fi;
  find_loader(__builtin_return_address(0));
  fi_provider& provider = this_provider();
  provider.name = provider_name();
  provider.version = version_of(provider.name);
  provider.fi_version = loader_version();
  provider.getinfo = getinfo;
  provider.fabric = fabric;
  provider.cleanup = cleanup;
  return &provider;
}
