#include "providers/providers.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/locks/fork_gate.h"
#include "fabric/registration/cache_settings.h"
#include "providers/link_spec.h"
#include "providers/lnx/combinations.h"
#include "providers/lnx/link_settings.h"
#include "providers/lnx/missing_link.h"
#include "providers/lnx/provider.h"
#include "providers/shm/provider.h"
#include "providers/tcp/provider.h"
#if FAB_HAS_VERBS
#include "providers/verbs/provider.h"
#endif

namespace fab {
namespace {

using Providers = std::vector<std::unique_ptr<Provider>>;

const Providers& providers() {
  static constinit MadeOnce<const Providers> all;
  return all.get([] {
    Providers list;
    list.push_back(shm::make_shm_provider());
#if FAB_HAS_VERBS
    list.push_back(verbs::make_verbs_provider());
#endif
    list.push_back(tcp::make_tcp_provider());
    return list;
  });
}

// All names that a provider reads from DomainOptions::settings.
constexpr const char* kSettings[] = {
    "shm_copy",    "tcp_listen",          "tcp_port",      "tcp_kernel_tls",         "lnx_disable_shm",
    "lnx_use_srq", "verbs_atomics",       "verbs_odp",     "verbs_relaxed_ordering", "verbs_gid_index",
    "verbs_srq",   "verbs_traffic_class", "verbs_retries", "verbs_ack_timeout",      "verbs_connect",
    "verbs_listen"};

struct Leaf {
  const Provider* provider;
  Info info;
};
using Leaves = std::vector<Leaf>;

std::string listed(const auto& things, const auto& name) {
  std::string all;
  for (const auto& thing : things) all.append(all.empty() ? "" : ", ").append(name(thing));
  return all;
}

const Provider& provider_of(const LinkPart& part) {
  const auto& all = providers();
  const auto found =
      std::ranges::find_if(all, [&](const auto& candidate) { return candidate->name() == part.provider; });
  if (found == all.end())
    throw Error(Errc::invalid, "unknown provider \"" + part.provider + "\"; this build has " +
                                   listed(all, [](const auto& known) { return known->name(); }));
  return **found;
}

// What a part may stand for: all devices that it names together or, if it names none, any one device that can
// be used. Never empty.
std::vector<Leaves> choices_of(const LinkPart& part) {
  const Provider& provider = provider_of(part);
  const auto infos = provider.discover();
  if (infos.empty())
    throw Error(Errc::no_data, part.provider + " finds no device on this machine: " + provider.problem());
  std::vector<Leaves> choices;
  if (part.devices.empty()) {
    for (const Info& info : infos)
      if (info.usable) choices.push_back({{&provider, info}});
    // If no device can be used, the Info of the first one tells the reason.
    if (choices.empty()) choices.push_back({{&provider, infos.front()}});
    return choices;
  }
  choices.emplace_back();
  for (const std::string& device : part.devices) {
    const auto called = [&](const Info& info) { return info.domain == device || info.alias == device; };
    auto found = std::ranges::find_if(infos, [&](const Info& info) { return info.usable && called(info); });
    // If the named device cannot be used, its Info tells the reason.
    if (found == infos.end()) found = std::ranges::find_if(infos, called);
    if (found == infos.end())
      throw Error(Errc::invalid, part.provider + " has no device \"" + device + "\"; it has " +
                                     listed(infos, [](const Info& info) { return info.domain; }));
    choices.front().push_back({&provider, *found});
  }
  // A named port that is down counts as a rail that is down, as long as another port works.
  Leaves& named = choices.front();
  if (std::ranges::any_of(named, [](const Leaf& leaf) { return leaf.info.usable; }))
    for (Leaf& leaf : named) leaf.info.usable |= leaf.info.absent;
  return choices;
}

// All that a link may stand for. The leaves of each are in order of preference.
std::vector<Leaves> combinations_of(const Link& link, bool first_only) {
  std::vector<std::vector<Leaves>> choices;
  std::vector<std::size_t> counts;
  for (const LinkPart& part : link) {
    choices.push_back(choices_of(part));
    counts.push_back(first_only ? 1 : choices.back().size());
  }
  std::vector<Leaves> all;
  for (const auto& chosen : lnx::combinations(counts)) {
    all.emplace_back();
    for (std::size_t part = 0; part < chosen.size(); ++part)
      std::ranges::copy(choices[part][chosen[part]], std::back_inserter(all.back()));
  }
  return all;
}

Info info_of(const Leaves& leaves) {
  if (leaves.size() == 1) return leaves.front().info;
  std::vector<Info> infos;
  infos.reserve(leaves.size());
  for (const Leaf& leaf : leaves) infos.push_back(leaf.info);
  return lnx::combine(infos);
}

std::vector<Link> links_for(const std::string& spec) {
  const std::string configured = configured_links();
  if (spec == "lnx") {
    if (configured.empty())
      throw Error(
          Errc::no_data,
          "\"lnx\" stands for what FI_LNX_PROV_LINKS names, which is not set; set it, for instance to "
          "shm+tcp, or name the links instead of lnx");
    return parse_links(configured);
  }
  if (!spec.empty()) return parse_links(spec);
  if (!configured.empty()) return parse_links(configured);
  Link best;
  for (const auto& provider : providers()) {
    const auto infos = provider->discover();
    // A provider that reaches beyond this machine has to be named, because other machines could call it.
    const bool here = !infos.empty() && (infos.front().caps & caps::kRemoteComm) == 0;
    if (here && infos.front().usable) best.push_back({std::string(provider->name()), {}});
  }
  return {best};
}

struct Found {
  Leaves leaves;
  Info info;
  bool linked;  // several links were asked for
};

// The links of `spec` that can be used here. With `first_only` each alternative gives only its first
// combination. Throws Error(no_data) if nothing can be used.
std::vector<Found> usable_links(const std::string& spec, const lnx::LinkSettings& settings, bool first_only) {
  std::vector<Found> found;
  std::string reasons;
  const auto note = [&](const std::string& why) { reasons.append(reasons.empty() ? "" : "; ").append(why); };
  std::vector<Link> links = links_for(spec);
  for (Link& link : links) try {
      const bool several = link.size() > 1;
      if (several && settings.disable_shm)
        std::erase_if(link, [](const LinkPart& part) { return part.provider == "shm"; });
      for (Leaves& leaves : combinations_of(link, first_only)) {
        Info info = info_of(leaves);
        const bool linked = several || leaves.size() > 1;
        if (info.usable)
          found.push_back({std::move(leaves), std::move(info), linked});
        else
          note(info.why);
      }
    } catch (const Error& error) {
      if (error.code() != Errc::no_data) throw;
      note(error.what());
    }
  if (found.empty())
    throw Error(Errc::no_data,
                "no link of \"" + spec + "\" can be used here: " + reasons + "; see `pyfab doctor`");
  return found;
}

// What leaves the host is encrypted on all links, or the domain is not opened. Bytes over shared memory stay.
void check_encryption(const Leaves& leaves) {
  for (const Leaf& leaf : leaves)
    if (leaf.provider->name() == "verbs")
      throw Error(
          Errc::not_supported_here,
          "encrypt: links over verbs cannot be encrypted, because devices move the bytes; use tcp or "
          "shm+tcp, or a network that is encrypted below (IPsec or MACsec in the device) without encrypt");
}

std::unique_ptr<Domain> open_leaves(const Leaves& leaves, const DomainServices& services, RailOptions rails) {
  std::vector<lnx::OpenLink> links;
  std::map<std::string_view, int> ordinals;
  if (services.options.encrypt) check_encryption(leaves);
  DomainServices lent = services;
  lent.linked = leaves.size() > 1;
  for (const Leaf& leaf : leaves) {
    const auto provider = leaf.provider->name();
    const std::string tag = std::string(provider) + "." + std::to_string(ordinals[provider]++);
    links.push_back({.domain = leaf.info.usable || !lent.linked ? leaf.provider->open(leaf.info, tag, lent)
                                                                : lnx::make_missing_link(leaf.info, tag),
                     .tag = tag});
  }
  if (!lent.linked) return std::move(links.front().domain);
  return lnx::make_linked_domain(std::move(links), {.rail_policy = std::move(rails.policy),
                                                    .rail_deadline = rails.deadline,
                                                    .peer_deadline = services.options.peer_deadline});
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
  std::vector<Info> infos;
  for (Found& found : usable_links(spec, lnx::LinkSettings::of({}), false))
    infos.push_back(std::move(found.info));
  return infos;
}

std::shared_ptr<DomainCore> open_domain(const std::string& spec, DomainOptions options, RailOptions rails) {
  std::vector<std::string> settings(std::begin(kSettings), std::end(kSettings));
  settings.insert(settings.end(), std::begin(kCacheSettings), std::end(kCacheSettings));
  for (const auto& [name, value] : options.settings)
    if (std::ranges::find(settings, name) == settings.end())
      throw Error(Errc::invalid, "unknown setting \"" + name + "\"; known are " +
                                     listed(settings, [](const std::string& known) { return known; }));
  const auto switches = lnx::LinkSettings::of(options.settings);
  const Found found = usable_links(spec, switches, true).front();
  options.shared_receives = switches.shared_receives || !found.linked;
  return DomainCore::open(
      [&](const DomainServices& services) { return open_leaves(found.leaves, services, std::move(rails)); },
      std::move(options));
}

}  // namespace fab
