#include "providers/lnx/provider.h"

#include <algorithm>

#include "fabric/domain/memory_region.h"
#include "providers/lnx/endpoint.h"

namespace fab::lnx {
namespace {

class LinkedDomain final : public Domain, private DeviceMemory {
 public:
  LinkedDomain(std::vector<OpenLink> links, LinkedOptions options)
      : links_(std::move(links)), options_(std::move(options)) {
    std::vector<Info> infos;
    infos.reserve(links_.size());
    for (const auto& [domain, tag] : links_) {
      infos.push_back(domain->info());
      if (DeviceMemory* const memory = domain->device_memory()) memories_.push_back(memory);
    }
    info_ = combine(infos);
  }

  const Info& info() const noexcept override { return info_; }

  std::vector<LinkRegistrations> registrations() const override {
    std::vector<LinkRegistrations> all;
    for (const auto& link : links_)
      for (LinkRegistrations& each : link.domain->registrations()) all.push_back(std::move(each));
    return all;
  }

  DeviceMemory* device_memory() noexcept override { return memories_.empty() ? nullptr : this; }

  PartCheck part_check() const override {
    std::vector<PartCheck> checks;
    checks.reserve(links_.size());
    for (const auto& link : links_) checks.push_back(link.domain->part_check());
    return [checks = std::move(checks)](const PartView& part) {
      PartVerdict all;
      for (const PartCheck& check : checks) {
        PartVerdict one = check(part);
        all.usable |= one.usable;
        all.proven |= one.proven;
        if (!one.found.empty()) all.found = std::move(one.found);
      }
      return all;
    };
  }

  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override {
    std::vector<LinkedEndpoint::Link> links;
    links.reserve(links_.size());
    for (const auto& [domain, tag] : links_)
      links.push_back({domain.get(), tag, !domain->info().shares_fate_with_node});
    return std::make_unique<LinkedEndpoint>(links, services, options_);
  }

 private:
  void forget(std::uint32_t index) noexcept override {
    for (DeviceMemory* const memory : memories_) memory->forget(index);
  }
  bool reaches_hidden(AddressRange range, bool stores) noexcept override {
    return std::ranges::any_of(memories_,
                               [&](auto* memory) { return memory->reaches_hidden(range, stores); });
  }

  std::vector<OpenLink> links_;
  std::vector<DeviceMemory*> memories_;  // of those links that have one
  const LinkedOptions options_;
  Info info_;
};

}  // namespace

Info combine(const std::vector<Info>& links) {
  Info all = links.front();
  all.provider = "lnx";
  all.nics.clear();
  all.links.clear();
  all.fabric.clear();
  all.domain.clear();
  all.usable = true;
  all.why.clear();
  bool any = false;
  std::string missing;
  constexpr std::uint64_t kEither = caps::kLocalComm | caps::kRemoteComm;  // one link that has it is enough
  std::uint64_t reach = 0;
  for (const Info& link : links) {
    if (!link.not_linkable.empty())
      throw Error(Errc::invalid,
                  link.provider + " cannot be linked with other providers: " + link.not_linkable);
    reach |= link.caps & kEither;
    all.caps &= link.caps | kEither;
    all.delivery &= link.delivery;
    all.mr_mode |= link.mr_mode;
    all.mr_key_size = std::min(all.mr_key_size, link.mr_key_size);
    all.mr_iov_limit = std::min(all.mr_iov_limit, link.mr_iov_limit);
    all.inject_size = std::min(all.inject_size, link.inject_size);
    all.max_msg_size = std::min(all.max_msg_size, link.max_msg_size);
    all.max_rma_size = std::min(all.max_rma_size, link.max_rma_size);
    all.max_contexts = std::min(all.max_contexts, link.max_contexts);
    all.max_group_id = std::min(all.max_group_id, link.max_group_id);
    if (all.src_addr.empty()) all.src_addr = link.src_addr;
    all.nics.insert(all.nics.end(), link.nics.begin(), link.nics.end());
    all.links.insert(all.links.end(), link.links.begin(), link.links.end());
    all.fabric += (all.fabric.empty() ? "" : "+") + link.fabric;
    all.domain += (all.domain.empty() ? "" : "+") + link.domain;
    all.shares_fate_with_node &= link.shares_fate_with_node;
    any |= link.usable;
    if (link.usable) continue;
    const std::string why = link.provider + ": " + link.why;
    missing += (missing.empty() ? "" : "; ") + why;
    // Without shared memory, peers on the node are reached over the network.
    if (!link.shares_fate_with_node && all.usable) {
      all.usable = false;
      all.why = why;
    }
  }
  if (!any) {
    all.usable = false;
    all.why = missing;
  }
  all.caps = (all.caps & ~kEither) | reach;
  return all;
}

std::unique_ptr<Domain> make_linked_domain(std::vector<OpenLink> links, LinkedOptions options) {
  return std::make_unique<LinkedDomain>(std::move(links), std::move(options));
}

}  // namespace fab::lnx
