#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/provider.h"
#include "providers/lnx/linked_options.h"

// The linked provider: a resolver, not a relay. It picks a link per peer and hands out that link's own Path,
// so it costs nothing after the first use of a peer; only where several network links lead to a peer, it uses
// them together (docs/rails.md).
namespace fab::lnx {

// What a domain over all of `links` offers: the smallest limits, the capabilities that all have, the NICs of
// all. Throws Error(invalid) if one cannot be linked.
Info combine(const std::vector<Info>& links);

struct OpenLink {
  std::unique_ptr<Domain> domain;
  std::string tag;  // of its parts: "tcp.0"
};

// Takes open links in order of preference; at least two.
std::unique_ptr<Domain> make_linked_domain(std::vector<OpenLink> links, LinkedOptions options);

}  // namespace fab::lnx
