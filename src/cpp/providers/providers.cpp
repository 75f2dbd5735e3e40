#include "providers/providers.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "fabric/cache_settings.h"
#include "providers/lnx/link_spec.h"
#include "providers/lnx/lnx_provider.h"
#include "providers/shm/shm_provider.h"
#include "providers/tcp/tcp_provider.h"

namespace fab {
namespace {

const std::vector<std::unique_ptr<Provider>>& providers() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Provider>> list;
    list.push_back(shm::make_shm_provider());
    list.push_back(tcp::make_tcp_provider());
    return list;
  }();
  return all;
}

// All names that a provider reads from DomainOptions::settings.
constexpr const char* kSettings[] = {"shm_copy", "tcp_listen", "tcp_port"};

struct Leaf {
  const Provider* provider;
  Info info;
};

std::vector<Leaf> leaves_of(const lnx::Link& link) {
  std::vector<Leaf> leaves;
  for (const lnx::LinkPart& part : link) {
    const auto& all = providers();
    const auto provider =
        std::ranges::find_if(all, [&](const auto& candidate) { return candidate->name() == part.provider; });
    if (provider == all.end()) {
      std::string known;
      for (const auto& candidate : all) known.append(known.empty() ? "" : ", ").append(candidate->name());
      throw Error(Errc::invalid, "unknown provider \"" + part.provider + "\"; this build has " + known);
    }
    const auto infos = (*provider)->discover();
    if (infos.empty()) throw Error(Errc::no_data, part.provider + " finds no device on this machine");
    if (part.devices.empty()) leaves.push_back({provider->get(), infos.front()});
    for (const std::string& device : part.devices) {
      const auto found = std::ranges::find(infos, device, &Info::domain);
      if (found == infos.end()) {
        std::string known;
        for (const Info& info : infos) known.append(known.empty() ? "" : ", ").append(info.domain);
        throw Error(Errc::invalid, std::string(part.provider)
                                       .append(" has no device \"")
                                       .append(device)
                                       .append("\"; it has ")
                                       .append(known));
      }
      leaves.push_back({provider->get(), *found});
      leaves.back().info.links = {part.provider + ":" + device};
    }
  }
  return leaves;
}

Info info_of(const std::vector<Leaf>& leaves) {
  if (leaves.size() == 1) return leaves.front().info;
  std::vector<Info> infos;
  infos.reserve(leaves.size());
  for (const Leaf& leaf : leaves) infos.push_back(leaf.info);
  return lnx::combine(infos);
}

std::vector<lnx::Link> links_for(const std::string& spec) {
  if (!spec.empty()) return lnx::parse_links(spec);
  if (const std::string configured = configured_links(); !configured.empty())
    return lnx::parse_links(configured);
  lnx::Link best;
  for (const auto& provider : providers()) {
    const auto infos = provider->discover();
    if (!infos.empty() && infos.front().usable) best.push_back({std::string(provider->name()), {}});
  }
  return {best};
}

std::unique_ptr<Domain> open_leaves(const std::vector<Leaf>& leaves, const DomainServices& services) {
  std::vector<std::unique_ptr<Domain>> domains;
  std::map<std::string_view, int> ordinals;
  for (const Leaf& leaf : leaves) {
    const auto provider = leaf.provider->name();
    domains.push_back(leaf.provider->open(
        leaf.info, std::string(provider) + "." + std::to_string(ordinals[provider]++), services));
  }
  return domains.size() == 1 ? std::move(domains.front())
                             : lnx::make_linked_domain(std::move(domains), services.options);
}

}  // namespace

std::string configured_links() {
  const char* value = std::getenv("FI_LNX_PROV_LINKS");
  return value ? value : "";
}

std::vector<Info> discover() {
  std::vector<Info> all;
  for (const auto& provider : providers()) std::ranges::move(provider->discover(), std::back_inserter(all));
  return all;
}

std::vector<Info> find_links(const std::string& spec) {
  std::vector<Info> found;
  std::string reasons;
  for (const lnx::Link& link : links_for(spec)) {
    Info info = info_of(leaves_of(link));
    if (info.usable)
      found.push_back(std::move(info));
    else
      reasons.append(reasons.empty() ? "" : "; ").append(info.why);
  }
  if (found.empty())
    throw Error(Errc::no_data,
                "no link of \"" + spec + "\" can be used here: " + reasons + "; see `pyfab doctor`");
  return found;
}

std::shared_ptr<DomainCore> open_domain(const std::string& spec, DomainOptions options) {
  std::vector<std::string> settings(std::begin(kSettings), std::end(kSettings));
  settings.insert(settings.end(), std::begin(kCacheSettings), std::end(kCacheSettings));
  for (const auto& [name, value] : options.settings)
    if (std::ranges::find(settings, name) == settings.end()) {
      std::string known;
      for (const std::string& setting : settings) known.append(known.empty() ? "" : ", ").append(setting);
      throw Error(Errc::invalid,
                  std::string("unknown setting \"").append(name).append("\"; known are ").append(known));
    }
  std::string reasons;
  for (const lnx::Link& link : links_for(spec)) {
    const auto leaves = leaves_of(link);
    const Info info = info_of(leaves);
    if (info.usable)
      return DomainCore::open([&](const DomainServices& services) { return open_leaves(leaves, services); },
                              std::move(options));
    reasons.append(reasons.empty() ? "" : "; ").append(info.why);
  }
  throw Error(Errc::no_data,
              "no link of \"" + spec + "\" can be used here: " + reasons + "; see `pyfab doctor`");
}

}  // namespace fab
