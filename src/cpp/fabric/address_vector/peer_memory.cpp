#include "fabric/address_vector/peer_memory.h"

#include <vector>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

class PrivatePeerMemory final : public PeerMemory {
 public:
  PrivatePeerMemory() : owned_(std::make_unique<PeerHeader>()) { header_ = owned_.get(); }

 private:
  void lock() override FAB_ACQUIRE() { mutex_.lock(); }
  void unlock() noexcept override FAB_RELEASE() { mutex_.unlock(); }
  std::byte* attach(unsigned, unsigned) const noexcept override { return nullptr; }
  std::byte* create(unsigned section, unsigned chunk, std::size_t bytes) override FAB_REQUIRES(this) {
    if (chunk >= kPeerChunks) throw Error(Errc::no_memory, "the address vector is full");
    chunks_.push_back(Mapping::anonymous(bytes));
    set(section, chunk, chunks_.back().data());
    return chunks_.back().data();
  }

  const std::unique_ptr<PeerHeader> owned_;
  Mutex mutex_;
  std::vector<Mapping> chunks_ FAB_GUARDED_BY(this);
};

}  // namespace

std::unique_ptr<PeerMemory> make_private_peer_memory() { return std::make_unique<PrivatePeerMemory>(); }

}  // namespace fab
