#include "libfabric/fabric.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <string>

#include "libfabric/domain/domain.h"
#include "libfabric/endpoint/endpoint.h"
#include "libfabric/endpoint/scalable.h"
#include "libfabric/info.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/plugin/settings.h"
#include "libfabric/queues/cq.h"
#include "libfabric/queues/eq.h"

namespace fab::fi {
namespace {

Fabric& self(fid_fabric* fabric) noexcept { return object_of<Fabric>(fabric); }

}  // namespace

struct FabricCalls {
  static int domain(fid_fabric* fabric, fi_info* info, fid_domain** out, void* context) {
    return boundary(FI_LOG_DOMAIN, "fi_domain", [&] {
      if (!info || !info->domain_attr || !info->domain_attr->name)
        throw Error(Errc::invalid, "fi_domain needs an fi_info of fi_getinfo");
      return Domain::open(self(fabric).users(), *info, {&Endpoint::open, &ScalableEndpoint::open}, context,
                          out);
    });
  }
  static int eq_open(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) {
    return boundary(FI_LOG_EQ, "fi_eq_open",
                    [&] { return Eq::open(self(fabric).users(), attr ? *attr : fi_eq_attr{}, context, eq); });
  }
  static int passive_ep(fid_fabric*, fi_info*, fid_pep**, void*) { return -FI_ENOSYS; }
  static int wait_open(fid_fabric*, fi_wait_attr*, fid_wait**) { return -FI_ENOSYS; }
  // Whether a program may sleep on the descriptors of these queues: not while there is something to read.
  static int trywait(fid_fabric*, fid** fids, int count) {
    return boundary(FI_LOG_FABRIC, "fi_trywait", [&] {
      for (int i = 0; i < count; ++i) {
        bool ready = false;
        if (fids[i]->fclass == FI_CLASS_CQ)
          ready = object_of_fid<Cq, fid_cq>(fids[i]).ready();
        else if (fids[i]->fclass == FI_CLASS_EQ)
          ready = object_of_fid<Eq, fid_eq>(fids[i]).ready();
        else
          return -FI_ENOSYS;
        if (ready) return -FI_EAGAIN;
      }
      return 0;
    });
  }

  static fi_ops fid_calls;
  static fi_ops_fabric calls;
};

fi_ops FabricCalls::fid_calls = fid_ops(close_unused<Fabric, fid_fabric>);
fi_ops_fabric FabricCalls::calls = {.size = sizeof(fi_ops_fabric),
                                    .domain = domain,
                                    .passive_ep = passive_ep,
                                    .eq_open = eq_open,
                                    .wait_open = wait_open,
                                    .trywait = trywait,
                                    .domain2 = nullptr};

int Fabric::open(const fi_fabric_attr& attr, void* user_context, fid_fabric** out) {
  if (attr.name && std::string(attr.name) != kFabricName) return -FI_ENODATA;
  *out = new Fabric(user_context);
  return 0;
}

Fabric::Fabric(void* user_context) : fid_fabric{} {
  fid = {.fclass = FI_CLASS_FABRIC, .context = user_context, .ops = &FabricCalls::fid_calls};
  ops = &FabricCalls::calls;
}

}  // namespace fab::fi
