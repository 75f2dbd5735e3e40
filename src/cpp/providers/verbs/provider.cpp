#include "providers/verbs/provider.h"

#include <algorithm>

#include "fabric/types/error.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/domain.h"

namespace fab::verbs {
namespace {

class VerbsProvider final : public Provider {
 public:
  std::string_view name() const noexcept override { return "verbs"; }

  std::vector<Info> discover() const override {
    std::vector<Info> infos;
    for (const Device& device : list_devices()) infos.push_back(describe(device));
    return infos;
  }

  std::string problem() const override {
    if (!find_library()) return library_problem();
    return "is the driver loaded, may this user open /dev/infiniband, and is this no child of a fork() whose "
           "parent "
           "uses them?";
  }

  std::unique_ptr<Domain> open(const Info& info, std::string link,
                               const DomainServices& services) const override {
    if (!info.usable) throw Error(Errc::no_data, "verbs cannot use device " + info.domain + ": " + info.why);
    const auto devices = list_devices();
    const auto found = std::ranges::find(devices, info.domain, &Device::name);
    if (found == devices.end()) throw Error(Errc::no_data, "verbs: device " + info.domain + " is gone");
    // It may have lost its port or its address since.
    if (const Info now = describe(*found); !now.usable)
      throw Error(Errc::no_data, "verbs cannot use device " + info.domain + ": " + now.why);
    return std::make_unique<VerbsDomain>(*found, info, std::move(link), services);
  }
};

}  // namespace

std::unique_ptr<Provider> make_verbs_provider() { return std::make_unique<VerbsProvider>(); }

}  // namespace fab::verbs
