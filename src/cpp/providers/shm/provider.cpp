#include "providers/shm/provider.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <system_error>

#include "base/bytes/sha256.h"
#include "base/memory/mapping.h"
#include "base/process/identity.h"
#include "base/process/process.h"
#include "fabric/types/peer_id.h"
#include "providers/shm/domain.h"

namespace fab::shm {
namespace {

// Why peers could not map memory of this process; empty if they can. Tries what they will do.
std::string why_unusable() {
  try {
    const OwnFd file = make_memory_file("pyfab-probe", page_size());
    const std::string path = "/proc/self/fd/" + std::to_string(file.get());
    const std::string step =
        "open " + path;  // first, as a descriptor that nothing owns yet would leak with it
    const OwnFd opened(check_call(::open(path.c_str(), O_RDWR | O_CLOEXEC), step.c_str()));
    Mapping::shared(opened.get(), 0, page_size());
    make_published_memory("pyfab-probe", page_size());
  } catch (const std::system_error& error) {
    if (is_shortage(error.code().value())) throw;
    return std::string(error.what()) +
           "; shm needs memfd_create(2) with F_SEAL_FUTURE_WRITE (Linux 5.1) and a mounted /proc";
  }
  // The kernel shows the descriptors of a process that is not dumpable only to that process and to root.
  if (::prctl(PR_GET_DUMPABLE) != 1 && ::geteuid() != 0)
    return "this process is not dumpable (it changed its user, or hardened itself), so peers cannot open its "
           "memory through "
           "/proc; start it as that user, or call prctl(PR_SET_DUMPABLE, 1)";
  if (this_process().start_time == 0) return "/proc/self/stat cannot be read; shm needs a mounted /proc";
  return {};
}

std::string hex(const std::uint8_t* bytes, std::size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text.push_back(kDigits[bytes[i] >> 4]);
    text.push_back(kDigits[bytes[i] & 15]);
  }
  return text;
}

}  // namespace

std::vector<Info> ShmProvider::discover() const {
  Info info;
  info.provider = "shm";
  info.fabric = "node:" + hex(sha256(host_identity()).data(), 8);
  info.domain = "node";
  info.addr_format = "bundle";
  info.caps = caps::kRma | caps::kAtomic | caps::kRead | caps::kWrite | caps::kRemoteRead |
              caps::kRemoteWrite | caps::kRmaEvent | caps::kRemoteData | caps::kMessage | caps::kTagged |
              caps::kDirectedReceive | caps::kMultiReceive | caps::kNamedReceive | caps::kLocalComm |
              caps::kRmaPmem;
  info.max_group_id = kMaxGroupId;
  info.shares_fate_with_node = true;
  info.links = {"shm"};
  info.why = why_unusable();
  info.usable = info.why.empty();
  return {info};
}

std::unique_ptr<Domain> ShmProvider::open(const Info& info, std::string link,
                                          const DomainServices& services) const {
  if (!info.usable) throw Error(Errc::not_supported_here, "shm cannot be used here: " + info.why);
  return std::make_unique<ShmDomain>(info, std::move(link), services);
}

std::unique_ptr<Provider> make_shm_provider() { return std::make_unique<ShmProvider>(); }

}  // namespace fab::shm
