#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// The provider as libfabric sees it: loaded from its file, and used through its tables of functions. No
// libfabric is needed.
namespace fab::test {

inline fi_provider& provider() {
  static fi_provider* const loaded = [] {
    ::setenv("PYFAB_FI_LINKS", "shm", 1);
    void* const library = ::dlopen(FAB_FI_PROVIDER, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library, ::dlerror());
    using Entry = fi_provider* (*)();
    return reinterpret_cast<Entry>(::dlsym(library, "fi_prov_ini"))();
  }();
  return *loaded;
}

// For as long as it lives, domains are over these links.
struct Links {
  explicit Links(const char* links) {
    provider();  // which sets its own
    ::setenv("PYFAB_FI_LINKS", links, 1);
  }
  ~Links() { ::setenv("PYFAB_FI_LINKS", "shm", 1); }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
};

// Hints with every part, all zero.
struct Hints {
  fi_tx_attr tx{};
  fi_rx_attr rx{};
  fi_ep_attr ep{};
  fi_domain_attr domain{};
  fi_fabric_attr fabric{};
  fi_info info{};
  Hints() {
    info.tx_attr = &tx;
    info.rx_attr = &rx;
    info.ep_attr = &ep;
    info.domain_attr = &domain;
    info.fabric_attr = &fabric;
  }
};

// Gives back what fi_getinfo(3) made, part by part, as fi_freeinfo(3) does.
struct FreeInfo {
  void operator()(fi_info* info) const {
    while (info) {
      fi_info* const next = info->next;
      std::free(info->domain_attr->name);
      std::free(info->domain_attr->auth_key);
      std::free(info->fabric_attr->name);
      for (void* const part : {info->src_addr, info->dest_addr, static_cast<void*>(info->tx_attr),
                               static_cast<void*>(info->rx_attr), static_cast<void*>(info->ep_attr),
                               static_cast<void*>(info->domain_attr), static_cast<void*>(info->fabric_attr),
                               static_cast<void*>(info)})
        std::free(part);
      info = next;
    }
  }
};
using InfoPtr = std::unique_ptr<fi_info, FreeInfo>;

inline InfoPtr info_for(const Hints& hints) {
  fi_info* found = nullptr;
  const int result = provider().getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, &hints.info, &found);
  return InfoPtr(result == 0 ? found : nullptr);
}

inline std::string name_of(fid_ep* ep) {
  std::size_t length = 0;
  CHECK(fi_getname(&ep->fid, nullptr, &length) == -FI_ETOOSMALL);
  std::string bytes(length, '\0');
  CHECK(fi_getname(&ep->fid, bytes.data(), &length) == 0);
  return bytes;
}
inline fi_addr_t insert(fid_av* av, const std::string& name) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  CHECK(fi_av_insert(av, name.data(), 1, &address, 0, nullptr) == 1);
  return address;
}
// The next entry, and whose it is.
inline fi_cq_tagged_entry next_of(fid_cq* cq, fi_addr_t* from = nullptr) {
  fi_cq_tagged_entry found{};
  fi_addr_t source = 0;
  REQUIRE(fi_cq_sreadfrom(cq, &found, 1, from ? from : &source, nullptr, 20000) == 1);
  return found;
}

// An endpoint with all that it needs, which closes in order.
struct Node {
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* ep = nullptr;
  std::vector<fid_cntr*> counters;

  // `before` is called with what is about to be enabled.
  explicit Node(std::uint64_t queue_flags = 0, const Hints& hints = Hints(),
                const std::function<void(Node&)>& before = {})
      : Node(info_for(hints), queue_flags) {
    if (before) before(*this);
    REQUIRE(fi_enable(ep) == 0);
  }
  // One that is not enabled. `queue` is the size of its completion queue; 0: the usual one.
  explicit Node(const InfoPtr& info, std::uint64_t queue_flags = 0, std::size_t queue = 0) {
    REQUIRE(info);
    REQUIRE(provider().fabric(info->fabric_attr, &fabric, nullptr) == 0);
    REQUIRE(fi_domain(fabric, info.get(), &domain, nullptr) == 0);
    fi_av_attr av_attr{};
    REQUIRE(fi_av_open(domain, &av_attr, &av, nullptr) == 0);
    fi_cq_attr cq_attr{};
    cq_attr.size = queue;
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    cq_attr.wait_obj = FI_WAIT_UNSPEC;
    REQUIRE(fi_cq_open(domain, &cq_attr, &cq, nullptr) == 0);
    REQUIRE(fi_endpoint(domain, info.get(), &ep, nullptr) == 0);
    REQUIRE(fi_ep_bind(ep, &av->fid, 0) == 0);
    REQUIRE(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | queue_flags) == 0);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    CHECK(fi_close(&ep->fid) == 0);
    for (fid_cntr* const counter : counters) CHECK(fi_close(&counter->fid) == 0);
    for (fid* const each : {&cq->fid, &av->fid, &domain->fid, &fabric->fid}) CHECK(fi_close(each) == 0);
  }

  // A counter that closes after the endpoint.
  fid_cntr* counter() {
    fid_cntr* opened = nullptr;
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_UNSPEC;
    REQUIRE(fi_cntr_open(domain, &attr, &opened, nullptr) == 0);
    return counters.emplace_back(opened);
  }

  std::string name() const { return name_of(ep); }
  fi_addr_t insert(const Node& peer) { return test::insert(av, peer.name()); }
  fi_cq_tagged_entry entry(fi_addr_t* from = nullptr) { return next_of(cq, from); }
  fi_cq_err_entry error() {
    fi_cq_tagged_entry none{};
    REQUIRE(fi_cq_sread(cq, &none, 1, nullptr, 20000) == -FI_EAVAIL);
    fi_cq_err_entry found{};
    REQUIRE(fi_cq_readerr(cq, &found, 0) == 1);
    return found;
  }
  bool silent() {
    fi_cq_tagged_entry none{};
    return fi_cq_read(cq, &none, 1) == -FI_EAGAIN;
  }
};

// Registered memory, that ends before its domain.
struct Region {
  fid_mr* mr = nullptr;
  Region(Node& node, void* memory, std::size_t length, std::uint64_t key) {
    REQUIRE(fi_mr_reg(node.domain, memory, length, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr,
                      nullptr) == 0);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { CHECK(fi_close(&mr->fid) == 0); }
};

}  // namespace fab::test
