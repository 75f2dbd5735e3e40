#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/memory/mapping.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/types/error.h"

// Address vectors whose memory the tests read and write, as another process does that has them open.
namespace fab {

inline Part part_of(int number) { return {"tcp.0", 0, "port " + std::to_string(number)}; }
inline std::string name_of(int number) { return Name{{part_of(number)}}.encode(); }

inline std::string socket_of(int node, int port = 5000) {
  const char host[4] = {10, 0, static_cast<char>(node >> 8), static_cast<char>(node)};
  return pack(SocketAddress::from_bytes({host, 4}, static_cast<std::uint16_t>(port)));
}

class OpenMemory final : public PeerMemory {
 public:
  explicit OpenMemory(const AddressVectorOptions& options) {
    header_ = &bytes_;
    describe(bytes_, options);
  }
  int turns = 0;
  mutable int looks = 0;  // for chunks that are not there
  bool read_only = false;
  bool writable() const noexcept override { return !read_only; }

 private:
  void lock() override { ++turns; }
  void unlock() noexcept override {}
  std::byte* attach(unsigned, unsigned) const noexcept override {
    ++looks;
    return nullptr;
  }
  std::byte* create(unsigned section, unsigned chunk, std::size_t bytes) override {
    if (chunk >= kPeerChunks || bytes > std::size_t{1} << 24) throw Error(Errc::no_memory, "too large");
    chunks_.push_back(Mapping::anonymous(bytes));
    set(section, chunk, chunks_.back().data());
    return chunks_.back().data();
  }
  PeerHeader bytes_{};
  std::vector<Mapping> chunks_;
};

struct OpenVector {
  explicit OpenVector(const AddressVectorOptions& options = {})
      : OpenVector(options, std::make_unique<OpenMemory>(options)) {}
  OpenVector(const AddressVectorOptions& options, std::unique_ptr<OpenMemory> made)
      : memory(*made), vector(options, std::move(made)) {}
  OpenMemory& memory;
  AddressVector vector;
};

}  // namespace fab
