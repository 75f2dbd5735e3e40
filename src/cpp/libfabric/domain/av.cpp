#include "libfabric/domain/av.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fabric/address_vector/named_peer_memory.h"
#include "fabric/address_vector/socket_name.h"
#include "libfabric/domain/names.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"

namespace fab::fi {
namespace {

Av& self(fid_av* av) noexcept { return object_of<Av>(av); }

constexpr std::size_t kLeastHandles = 1024;

// The handles of a shared vector in the order of its addresses, where the program wants them. They are the
// same whatever is inserted, so no process has to tell another one.
Mapping handles_at(void* where, std::size_t count) {
  Mapping made = Mapping::anonymous_at(where, count * sizeof(fi_addr_t));
  const std::span handles(reinterpret_cast<fi_addr_t*>(made.data()), count);
  std::iota(handles.begin(), handles.end(), fi_addr_t{0});
  return made;
}

}  // namespace

struct AvCalls {
  static int insert(fid_av* av, const void* addresses, std::size_t count, fi_addr_t* handles,
                    std::uint64_t flags, void* context) {
    return boundary(FI_LOG_AV, "fi_av_insert",
                    [&] { return self(av).insert(addresses, count, handles, flags, context); });
  }
  static int insertsvc(fid_av*, const char*, const char*, fi_addr_t*, std::uint64_t, void*) {
    return -FI_ENOSYS;
  }
  static int insertsym(fid_av*, const char*, std::size_t, const char*, std::size_t, fi_addr_t*, std::uint64_t,
                       void*) {
    return -FI_ENOSYS;
  }
  static int remove(fid_av* av, fi_addr_t* handles, std::size_t count, std::uint64_t) {
    return boundary(FI_LOG_AV, "fi_av_remove", [&] { return self(av).remove(handles, count); });
  }
  static int lookup(fid_av* av, fi_addr_t handle, void* address, std::size_t* length) {
    return boundary(FI_LOG_AV, "fi_av_lookup", [&] { return self(av).lookup(handle, address, *length); });
  }
  static const char* straddr(fid_av* av, const void* address, char* text, std::size_t* length) {
    std::string printed;
    boundary(FI_LOG_AV, "fi_av_straddr", [&] {
      const AddressFormat format = self(av).format();
      const std::string_view bytes(static_cast<const char*>(address), wire_length(address, format));
      printed = print_address(from_wire(bytes, format));
      return 0;
    });
    if (printed.empty()) printed = "(no address)";
    copy_text(printed.c_str(), text, *length);
    *length = printed.size() + 1;
    return text;
  }
  static int av_set(fid_av*, fi_av_set_attr*, fid_av_set**, void*) { return -FI_ENOSYS; }

  static int bind(fid* known, fid* other, std::uint64_t) {
    return object_of_fid<Av, fid_av>(known).events_.bind(other);
  }

  static fi_ops fid_calls;
  static fi_ops_av calls;
};

fi_ops AvCalls::fid_calls = fid_ops(close_unused<Av, fid_av>, bind);
fi_ops_av AvCalls::calls = {.size = sizeof(fi_ops_av),
                            .insert = insert,
                            .insertsvc = insertsvc,
                            .insertsym = insertsym,
                            .remove = remove,
                            .lookup = lookup,
                            .straddr = straddr,
                            .av_set = av_set};

int Av::open(Domain& domain, fi_av_attr& attr, void* user_context, fid_av** out) {
  if (attr.rx_ctx_bits < 0) return -FI_EINVAL;
  AddressVectorOptions options;
  options.format = domain.format();
  options.rx_bits = static_cast<unsigned>(attr.rx_ctx_bits);
  std::shared_ptr<AddressVector> peers;
  Mapping handles;
  if (attr.name) {
    options.type = attr.type == FI_AV_MAP ? FI_AV_MAP : FI_AV_TABLE;
    const VectorName name{
        .domain = "libfabric " + domain.links(), .name = attr.name, .read_only = (attr.flags & FI_READ) != 0};
    peers = std::make_shared<AddressVector>(options, open_named_peer_memory(name, options));
    handles = handles_at(attr.map_addr, std::max(attr.count, kLeastHandles));
  } else {
    peers = std::make_shared<AddressVector>(options);
  }
  peers->judge_parts(domain.core()->domain().part_check(), domain.core()->domain().info().links);
  if (attr.name) attr.map_addr = handles.data();
  *out = new Av(domain, std::move(peers), std::move(handles), (attr.flags & FI_EVENT) != 0, user_context);
  return 0;
}

Av::Av(Domain& domain, std::shared_ptr<AddressVector> peers, Mapping handles, bool tells, void* user_context)
    : fid_av{},
      domain_(domain.users()),
      peers_(std::move(peers)),
      handles_(std::move(handles)),
      tells_(tells) {
  fid = {.fclass = FI_CLASS_AV, .context = user_context, .ops = &AvCalls::fid_calls};
  ops = &AvCalls::calls;
}

int Av::insert(const void* addresses, std::size_t count, fi_addr_t* handles, std::uint64_t flags,
               void* user_context) {
  if (tells_ && !events_.get()) return -FI_ENOEQ;
  if (!addresses && count) return -FI_EINVAL;  // fi_getinfo() gave none
  std::vector<int> errors(count, 0);
  const auto* at = static_cast<const char*>(addresses);
  const std::size_t length = count ? wire_length(addresses, format()) : 0;
  int inserted = 0;
  for (std::size_t i = 0; i < count; ++i, at += length) {
    PeerId handle = kNoPeer;
    errors[i] = -boundary(FI_LOG_AV, "fi_av_insert", [&] {
      handle = peers_->insert(from_wire({at, length}, format()));
      return 0;
    });
    inserted += errors[i] == 0;
    if (handles) handles[i] = handle;
  }
  if (flags & FI_SYNC_ERR) std::ranges::copy(errors, static_cast<int*>(user_context));
  if (!tells_) return inserted;
  tell(static_cast<std::size_t>(inserted), errors, user_context);
  return 0;
}

void Av::tell(std::size_t inserted, std::span<const int> errors, void* user_context) {
  for (std::size_t i = 0; i < errors.size(); ++i)
    if (errors[i] != 0) {
      fi_eq_err_entry failed{};
      failed.fid = &fid;
      failed.context = user_context;
      failed.data = i;
      failed.err = failed.prov_errno = errors[i];
      events_.get()->push_error(failed);
    }
  events_.get()->push(FI_AV_COMPLETE, {.fid = &fid, .context = user_context, .data = inserted});
}

int Av::remove(const fi_addr_t* handles, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) peers_->remove(handles[i]);
  return 0;
}

int Av::lookup(fi_addr_t handle, void* address, std::size_t& length) const {
  const std::string bytes = to_wire(peers_->lookup(handle), format());
  if (length) std::memcpy(address, bytes.data(), std::min(length, bytes.size()));
  length = bytes.size();
  return 0;
}

}  // namespace fab::fi
