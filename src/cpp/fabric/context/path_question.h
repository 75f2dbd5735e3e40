#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "fabric/provider.h"
#include "fabric/types/name.h"
#include "fabric/types/peer_id.h"

namespace fab {

// What the user has to be asked before there can be a path to a peer. PathTable throws it under the context's
// lock; it is asked without the lock, because the user's code may take long or use the context itself.
class PathQuestion final : public std::exception {
 public:
  PathQuestion(PathPolicy::Question question, PeerId peer, Name name, std::uint16_t target,
               std::size_t auth_index)
      : question_(std::move(question)),
        peer_(peer),
        name_(std::move(name)),
        target_(target),
        auth_index_(auth_index) {}
  const char* what() const noexcept override { return "the user has to be asked"; }

  // Calls the user's code on behalf of `asker`. Throws what that throws.
  std::vector<double> ask(const void* asker) const;
  void answer(PathPolicy& policy, const std::vector<double>& shares) const {
    policy.answer(name_, target_, auth_index_, shares);
  }
  // Whether this thread is inside ask() for that peer: then the user's code is using the peer that it is
  // asked about.
  static bool pending(const void* asker, PeerId peer) noexcept;

 private:
  PathPolicy::Question question_;
  PeerId peer_;
  Name name_;
  std::uint16_t target_;
  std::size_t auth_index_;
};

}  // namespace fab
