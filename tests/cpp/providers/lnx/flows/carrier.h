#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/messages/sender.h"
#include "fabric/session/extension.h"
#include "providers/lnx/flows/flow.h"

namespace fab::test {

inline std::shared_ptr<Sender> somebody(AddressVector& peers, const char* link = "test.0") {
  return std::make_shared<Sender>(peers, std::vector<Part>{{link, 0, "peer"}});
}

// A session over which requests of a flow come.
struct Carrier : ExtensionHost {
  virtual ~Carrier() = default;
  explicit Carrier(std::shared_ptr<Sender> of) : sender(std::move(of)) {}
  explicit Carrier(const char* link = "test.0") : Carrier(somebody(nobody(), link)) {}
  void answer(Errc outcome, FrameType) noexcept override { answered = outcome; }
  const std::shared_ptr<Sender>& peer() const noexcept override { return sender; }
  void cut() noexcept override {
    ++cuts;
    if (flow) flow->leave(*this);
  }
  void resume(std::uint64_t number, const Matched&) noexcept override { resumed.push_back(number); }
  bool at_rest() const noexcept override { return true; }

  std::shared_ptr<Sender> sender;
  lnx::Flow* flow = nullptr;
  int cuts = 0;
  std::vector<std::uint64_t> resumed;
  Errc answered = Errc::peer_lost;

 private:
  static AddressVector& nobody() {
    static AddressVector peers;
    return peers;
  }
};

}  // namespace fab::test
