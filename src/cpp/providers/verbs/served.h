#pragma once

#include <climits>
#include <memory>

#include "fabric/admission/guest_session.h"
#include "fabric/admission/guests.h"
#include "providers/verbs/endpoint.h"

namespace fab::verbs {

// A stream of a peer that has called, and the connection by which that peer's device reaches memory here.
// That connection needs no attention until it ends.
struct VerbsEndpoint::Served final : public ConnectionOwner, public DestroyedLater, public Guest {
  explicit Served(VerbsEndpoint& of)
      : endpoint(of),
        stream(of, {.on_open = [this] { endpoint.welcome(*this); },
                    .on_turn = [] {},
                    .on_failed = [this](Errc) { endpoint.release(*this); }}) {}
  void serve_memory(OwnId id, const rdma_conn_param& asked) {
    auto made = std::make_unique<Connection>(
        endpoint.connections(), *this,
        Connection::Depth{1, 0, 0, endpoint.shared().protection_domain, nullptr, true});
    if (made->answer(std::move(id), asked)) memory = std::move(made);
  }
  void on_connected() noexcept override {}
  void on_closed(Errc) noexcept override { memory.reset(); }
  void on_completion(const ibv_wc&) noexcept override {}

  // As a guest, and as a caller before. What the peer's device does in the memory here is not seen.
  std::uint64_t heard() const noexcept override { return stream.received(); }
  bool has_spoken() const noexcept override {
    return stream.open() ? stream.session()->incoming().frames() != 0 || memory : stream.received() != 0;
  }
  Work work() noexcept override {
    if (!stream.open()) return Work::none;
    if (memory) return proven() ? Work::moving : Work::stalled;
    return work_of(*stream.session(), stream.pace());
  }
  bool proven() noexcept override { return stream.open() && stream.session()->sender().proven(); }
  int descriptor() const noexcept override { return INT_MAX; }  // none is kept for others
  void evict(const char* why) noexcept override {
    const bool stood = stream.open();
    endpoint.note(stood ? SecurityEvent::limit : SecurityEvent::caller_dropped, stream, why);
    stream.fail(Errc::peer_lost);
  }

  VerbsEndpoint& endpoint;
  VerbsStream stream;
  std::unique_ptr<Connection> memory;
  bool stands = false;  // among the guests, and not among the callers any more
};

template <class Visit>
void VerbsEndpoint::visit_served(Visit visit) noexcept {
  for (std::size_t i = served_.size(); i-- > 0;)
    if (i < served_.size()) visit(served_[i]->stream);
}

}  // namespace fab::verbs
