#include "providers/verbs/device/description.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/bytes/wire.h"
#include "fabric/session/frames/frame.h"
#include "fabric/types/versions.h"

namespace fab::verbs {

void Description::encode(std::byte* out) const {
  WireWriter writer;
  writer.put(versions::kVerbsDescription)
      .put(piece_count)
      .put(static_cast<std::uint8_t>(atomics))
      .put(std::uint8_t{0});
  writer.put(access).put(base);
  for (std::size_t i = 0; i < piece_count; ++i)
    writer.put(pieces[i].address).put(pieces[i].length).put(pieces[i].rkey);
  const std::string bytes = writer.take();
  std::memset(out, 0, kDescriptionBytes);
  std::memcpy(out, bytes.data(), std::min(bytes.size(), kDescriptionBytes));
}

std::optional<Description> Description::decode(const std::byte* in) noexcept {
  WireReader reader({reinterpret_cast<const char*>(in), kDescriptionBytes});
  Description told;
  if (reader.get<std::uint8_t>() != versions::kVerbsDescription) return {};
  told.piece_count = reader.get<std::uint8_t>();
  told.atomics = reader.get<std::uint8_t>() != 0;
  reader.get<std::uint8_t>();
  told.access = reader.get<std::uint32_t>();
  told.base = reader.get<std::uint64_t>();
  if (told.piece_count == 0 || told.piece_count > kMostPieces) return {};
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < told.piece_count; ++i) {
    Piece& piece = told.pieces[i];
    piece.address = reader.get<std::uint64_t>();
    piece.length = reader.get<std::uint64_t>();
    piece.rkey = reader.get<std::uint32_t>();
    if (piece.length == 0 || piece.address + piece.length < piece.address || sum + piece.length < sum)
      return {};
    sum += piece.length;
  }
  return reader.ok() ? std::optional(told) : std::nullopt;
}

}  // namespace fab::verbs
