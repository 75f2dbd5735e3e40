#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fab/fab.h"

namespace fab::test {

// Two endpoints that know each other, and a region of the second one.
struct Pair {
  explicit Pair(const std::string& links, Memory memory = Memory(std::vector<std::byte>(4096)),
                const Options& options = {})
      : target_domain(links, options),
        target(target_domain),
        initiator_domain(links, options),
        initiator(initiator_domain),
        bytes(memory),
        region(target_domain.register_memory({.buffers = {memory}})),
        remote(region.remote().bytes()),
        peer(initiator.insert(target.address())),
        back(target.insert(initiator.address())) {}

  Domain target_domain;
  Endpoint target;
  Domain initiator_domain;
  Endpoint initiator;
  Memory bytes;
  Region region;
  Remote remote;
  Peer peer, back;
};

}  // namespace fab::test
