#include "fab/domain.h"

#include <utility>

#include "fab/state.h"
#include "providers/providers.h"

namespace fab::FAB_INTERFACE_NAME {

Remote::Remote(std::string_view bytes) {
  state_ = translated([&] { return std::make_shared<const State>(State{fab::RemoteRegion::decode(bytes)}); });
}

std::string Remote::bytes() const { return state_->region.encode(); }
std::uint64_t Remote::size() const noexcept { return state_->region.length; }
std::uint64_t Remote::key() const noexcept { return state_->region.key; }

Remote Region::remote() const {
  return translated([&] {
    state_->domain->core->check_open();
    return Remote(std::make_shared<const Remote::State>(Remote::State{state_->region->remote()}));
  });
}

std::uint64_t Region::size() const noexcept { return state_->region->length(); }

bool Region::close(double seconds) {
  return translated([&] {
    state_->domain->core->check_open();
    return state_->region->close(deadline_in(seconds));
  });
}

Domain::Domain(const std::string& links, Options options) {
  state_ = translated([&] {
    return std::make_shared<State>(fab::open_domain(links, {.auth_key = std::move(options.auth_key),
                                                            .encrypt = options.encrypt,
                                                            .manual_progress = options.manual_progress,
                                                            .busy_progress = options.busy_progress,
                                                            .non_coherent = {},
                                                            .peer_deadline = options.peer_deadline,
                                                            .settings = std::move(options.settings)}));
  });
}

Region Domain::register_memory(const Registration& what) {
  fab::MemoryRegion::Parameters parameters;
  auto owners = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (const Memory& memory : what.buffers) {
    if (what.access != Access::read) check_writable("a region with access to write", memory);
    parameters.buffers.push_back({memory.data(), memory.size()});
    owners->push_back(memory.owner());
  }
  if (what.buffers.size() == 1) {
    parameters.file = what.buffers.front().file_;
    parameters.file_offset = what.buffers.front().file_offset_;
  }
  parameters.access = static_cast<std::uint32_t>(what.access);
  parameters.requested_key = what.requested_key;
  parameters.keep_alive = std::move(owners);
  return translated([&] {
    auto state = std::make_shared<Region::State>();
    state->domain = state_;
    state->region = state_->core->register_memory(std::move(parameters));
    return Region(std::move(state));
  });
}

}  // namespace fab::FAB_INTERFACE_NAME
