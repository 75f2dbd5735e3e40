#pragma once

#include <memory>
#include <string>

#include "base/lifetime.h"
#include "fabric/provider.h"
#include "providers/verbs/connection/destroyed_later.h"
#include "providers/verbs/direct.h"
#include "providers/verbs/stream.h"

namespace fab::verbs {

struct LinkPumps;  // names the list of links that wait for pump()

// Which link of an endpoint this is: the peer's part as a whole, and the index of the authorization key.
using LinkKey = std::pair<std::string, std::size_t>;

// Everything that this endpoint has under way with one other endpoint, under one authorization key: what the
// devices do, and the stream for the rest. All handles of one peer share it.
class VerbsLink final : public DestroyedLater, public Linked<LinkPumps> {
 public:
  VerbsLink(VerbsEndpoint& endpoint, Part peer, const EndpointAddress& where, std::size_t key);
  ~VerbsLink() override;

  void call() noexcept;
  void expect_hidden(std::uint64_t key) { direct_.expect_hidden(key); }
  std::size_t post(std::span<const Transfer> batch) noexcept;
  bool pump() noexcept;
  Errc state() const noexcept { return stream_.state(); }
  PathCounts counts() const noexcept { return stream_.counts(); }
  std::uint64_t oldest() const noexcept;  // as Path::oldest()
  // For people: where the peer is, and what does not go as it could.
  std::string report() const {
    return stream_.remote() +
           (direct_.rests() ? ", by messages, because the devices' connection failed" : "");
  }
  void known_as(PeerId peer) noexcept { stream_.session()->sender().known_as(peer); }
  VerbsStream& stream() noexcept FAB_LIFETIME_BOUND { return stream_; }
  void fail(Errc error) noexcept { stream_.fail(error); }
  bool tick() noexcept;

  const LinkKey* place = nullptr;  // kept by the endpoint: where it has this link

 private:
  void on_stream_failed(Errc error) noexcept;

  VerbsEndpoint& endpoint_;
  VerbsStream stream_;
  Direct direct_;
  std::uint64_t last_rma_ = 0;  // number of the last put, get or update that the session got
  Liveness devices_;
};

// The path to one peer: a share in its link.
class VerbsPath final : public Path {
 public:
  VerbsPath(std::shared_ptr<VerbsLink> link, std::string tag)
      : link_(std::move(link)), tag_(std::move(tag)) {}

  void hint(const RemoteRegion& region) override {
    if ((region.access & access::kHidden) != 0) link_->expect_hidden(region.key);
  }
  std::size_t post(std::span<const Transfer> batch) noexcept override { return link_->post(batch); }
  Errc state() const noexcept override { return link_->state(); }
  bool idle() const noexcept override {
    const PathCounts all = counts();
    return all.posted == all.settled;
  }
  PathCounts counts() const noexcept override { return link_->counts(); }
  std::uint64_t oldest() const noexcept override { return link_->oldest(); }
  PathReport report() const override { return {tag_, link_->report()}; }
  void cut() noexcept override { link_->fail(Errc::peer_lost); }

 private:
  std::shared_ptr<VerbsLink> link_;
  std::string tag_;
};

}  // namespace fab::verbs
