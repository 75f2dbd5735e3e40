#include <string>
#include <vector>

#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "fabric/types/name.h"
#include "input.h"

// Names and descriptions of remote regions, as they come from other programs: as they are, and with the
// length and the checksum mended, without which hardly any change would come past the envelope.

using namespace fab;
using namespace fab::test;

namespace {

void read(const std::string& bytes) {
  try {
    const Name name = Name::decode(bytes);
    demand(name.encode() == bytes, "a name is encoded as it was read");
    std::vector<PartView> views;
    Name::decode(bytes, views);
    demand(views.size() == name.parts.size(), "both ways of reading find the same parts");
    for (std::size_t i = 0; i < views.size(); ++i)
      demand(name.parts[i] == Part{std::string(views[i].link), views[i].context, std::string(views[i].bytes)},
             "both ways of reading find the same part");
  } catch (const Error&) {
  }
  try {
    const RemoteRegion region = RemoteRegion::decode(bytes);
    demand(region.encode() == bytes, "a remote region is encoded as it was read");
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  constexpr std::size_t kHead = 6;  // magic and version
  if (size < kHead) return 0;
  const std::string_view body = std::string_view(bytes).substr(kHead);
  WireWriter mended;
  mended.raw(bytes.substr(0, kHead)).put_bytes(body).put(crc32(body));
  read(mended.take());
  return 0;
}
