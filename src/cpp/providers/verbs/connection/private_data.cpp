#include "providers/verbs/connection/private_data.h"

#include <algorithm>
#include <cstring>

#include "base/bytes/wire.h"
#include "fabric/types/versions.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kMagic = 0x31766670;  // "pfv1"

template <class... Values>
void put_all(char* out, const Values&... values) noexcept {
  ((std::memcpy(out, &values, sizeof values), out += sizeof values), ...);
}

bool is_ours(WireReader& reader) {
  return reader.get<std::uint32_t>() == kMagic && reader.get<std::uint8_t>() == versions::kVerbsCall;
}

}  // namespace

void PrivateData::encode(char* out) const noexcept {
  put_all(out, to_little(kMagic), versions::kVerbsCall, purpose, std::uint16_t{0}, to, to_little(token));
}

std::optional<PrivateData> PrivateData::decode(std::string_view bytes) noexcept {
  WireReader reader(bytes.substr(0, std::min(bytes.size(), kBytes)));
  const bool ours = is_ours(reader);
  const auto purpose = reader.get<std::uint8_t>();
  const auto zero = reader.get<std::uint16_t>();
  PrivateData data{.purpose = static_cast<Purpose>(purpose)};
  const auto id = reader.raw(data.to.size());
  data.token = reader.get<std::uint64_t>();
  if (!ours || !reader.at_end() || zero != 0 || purpose < 1 || purpose > 2) return {};
  std::ranges::copy(id, data.to.begin());
  return data;
}

void Refusal::encode(char* out) const noexcept {
  put_all(out, to_little(kMagic), versions::kVerbsCall, why, std::uint16_t{0});
}

std::optional<Refusal> Refusal::decode(std::string_view bytes) noexcept {
  WireReader reader(bytes.substr(0, std::min(bytes.size(), kBytes)));
  const bool ours = is_ours(reader);
  const auto why = reader.get<std::uint8_t>();
  const auto zero = reader.get<std::uint16_t>();
  if (!ours || !reader.at_end() || zero != 0 || why < 1 || why > 3) return {};
  return Refusal{static_cast<Why>(why)};
}

}  // namespace fab::verbs
