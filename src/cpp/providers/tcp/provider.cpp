#include "providers/tcp/provider.h"

#include "base/network/interfaces.h"
#include "fabric/types/peer_id.h"
#include "providers/tcp/domain.h"

namespace fab::tcp {
namespace {

class TcpProvider final : public Provider {
 public:
  std::string_view name() const noexcept override { return "tcp"; }

  std::vector<Info> discover() const override {
    std::vector<Info> infos;
    for (const Interface& interface : list_interfaces()) infos.push_back(describe(interface));
    return infos;
  }

  std::string problem() const override { return "no network interface has an address; see `ip address`"; }

  std::unique_ptr<Domain> open(const Info& info, std::string link,
                               const DomainServices& services) const override {
    if (!info.usable) throw Error(Errc::no_data, "tcp cannot use interface " + info.domain + ": " + info.why);
    return std::make_unique<TcpDomain>(info, std::move(link), services);
  }

 private:
  static Info describe(const Interface& interface) {
    Info info;
    info.provider = "tcp";
    info.fabric = interface.loopback ? "loopback" : "ip";
    info.domain = interface.name;
    info.addr_format = "bundle";
    info.caps = caps::kRma | caps::kAtomic | caps::kRead | caps::kWrite | caps::kRemoteRead |
                caps::kRemoteWrite | caps::kRmaEvent | caps::kRemoteData | caps::kMessage | caps::kTagged |
                caps::kDirectedReceive | caps::kMultiReceive | caps::kNamedReceive | caps::kRmaPmem |
                caps::kLocalComm | (interface.loopback ? 0 : caps::kRemoteComm);
    info.max_group_id = kMaxGroupId;
    info.inject_size = 64 * 1024;
    info.links = {"tcp:" + interface.name};
    info.nics = {{.name = interface.name,
                  .driver = interface.driver,
                  .pci_address = interface.pci_address,
                  .state = interface.state,
                  .numa_node = interface.numa_node,
                  .speed_bits_per_second = interface.speed_bits_per_second}};
    if (interface.addresses.empty()) {
      info.usable = false;
      info.why = interface.name + " has no address beyond its link; give it one";
    } else {
      info.src_addr = interface.addresses.front().v6() ? "[" + interface.addresses.front().host() + "]"
                                                       : interface.addresses.front().host();
      if (!interface.up) {
        info.usable = false;
        info.why = interface.name + " is down; bring it up";
      }
    }
    info.absent = !info.usable;
    return info;
  }
};

}  // namespace

std::unique_ptr<Provider> make_tcp_provider() { return std::make_unique<TcpProvider>(); }

}  // namespace fab::tcp
