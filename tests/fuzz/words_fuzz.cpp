#include <cstring>

#include "fabric/address_vector/socket_name.h"
#include "fabric/memory/raw_key.h"
#include "input.h"
#include "providers/shm/layout.h"
#if FAB_HAS_VERBS
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/device/regions.h"
#endif

// The small records that peers, or whoever carries them, hand over: raw keys, packed socket addresses, the
// shm part of a name, and, over verbs, private data and descriptions of regions.

using namespace fab;
using namespace fab::test;

namespace {

void raw_key(std::string_view bytes) {
  if (const auto key = decode_raw_key(bytes))
    demand(encode_raw_key(*key, bytes.size()) == bytes, "a raw key is encoded as it was read");
}

void socket_name(std::string_view bytes) {
  const auto address = unpack(bytes);  // which does not look at the padding that a sockaddr has
  if (!address) return;
  const auto again = unpack(pack(*address));
  demand(again && pack(*again) == pack(*address), "a packed address reads back");
}

void shm_part(std::string_view bytes) {
  if (const auto address = shm::Address::decode(bytes))
    demand(address->encode() == bytes, "a part of shared memory is encoded as it was read");
}

#if FAB_HAS_VERBS
void private_data(std::string_view bytes) {
  const auto data = verbs::PrivateData::decode(bytes);
  if (!data) return;
  char out[verbs::PrivateData::kBytes];
  data->encode(out);
  demand(bytes.substr(0, sizeof out) == std::string_view(out, sizeof out), "private data reads back");
}

void description(std::string_view bytes) {
  std::byte padded[kDescriptionBytes] = {};
  std::memcpy(padded, bytes.data(), std::min(bytes.size(), sizeof padded));
  const auto found = verbs::Description::decode(padded);
  if (!found) return;
  demand(found->piece_count <= verbs::Description::kMostPieces, "a description has few pieces");
  if (found->length() == 0) return;
  for (const std::uint64_t offset : {std::uint64_t{0}, found->length() / 2, found->length() - 1})
    demand(found->at(offset).left != 0, "every offset within a description lies in a piece");
}
#endif

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  raw_key(bytes);
  socket_name(bytes);
  shm_part(bytes);
#if FAB_HAS_VERBS
  private_data(bytes);
  description(bytes);
#endif
  return 0;
}
