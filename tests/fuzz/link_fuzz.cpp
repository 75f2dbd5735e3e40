#include <string>

#include "fabric/types/error.h"
#include "input.h"
#include "providers/link_spec.h"

// Link specs, which users write, and which come from environments and settings.

using namespace fab;
using namespace fab::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto links = parse_links({reinterpret_cast<const char*>(data), size});
    demand(!links.empty(), "a spec that is read has a link");
    std::string again;
    for (const Link& link : links) {
      if (!again.empty()) again += '|';
      for (std::size_t i = 0; i < link.size(); ++i) {
        if (i) again += '+';
        again += link[i].provider;
        for (std::size_t d = 0; d < link[i].devices.size(); ++d)
          again += (d ? "," : ":") + link[i].devices[d];
      }
    }
    demand(parse_links(again) == links, "what was read means the same when it is written again");
  } catch (const Error&) {
  }
  return 0;
}
