#pragma once

#include <memory>
#include <string>

#include "fabric/provider.h"
#include "providers/verbs/direct.h"
#include "providers/verbs/stream.h"

namespace fab::verbs {

struct LinkPumps;  // list of links that wait for pump()

// Everything that this endpoint has under way with one other, under one authorization key: what devices do,
// and the stream for the rest. The handles of one peer share it.
class VerbsLink final : public Buried, public Linked<LinkPumps> {
 public:
  VerbsLink(VerbsEndpoint& endpoint, Part peer, const Whereabouts& where, std::size_t key);
  ~VerbsLink() override;

  void call() noexcept;
  void expect_hidden(std::uint64_t key) { direct_.expect_hidden(key); }
  std::size_t post(std::span<const Transfer> batch) noexcept;
  bool pump() noexcept;
  Errc state() const noexcept { return stream_.state(); }
  PathCounts counts() const noexcept;
  std::string remote() const { return stream_.remote(); }
  void known_as(PeerId peer) noexcept { stream_.session()->sender().known_as(peer); }
  VerbsStream& stream() noexcept { return stream_; }
  void fail(Errc error) noexcept { stream_.fail(error); }
  bool tick() noexcept;

 private:
  // Transfers that followed each other the same way. Each way settles in order: together they say how many
  // have settled of those that were posted first.
  struct Run {
    bool direct = false;
    std::uint64_t count = 0;
  };
  bool room_for_run() noexcept;
  void ran(bool direct, std::uint64_t count) noexcept;
  void advance() const noexcept;
  std::uint64_t session_settled() const noexcept { return stream_.counts().settled - hidden_settled_; }
  void on_stream_failed(Errc error) noexcept;

  VerbsEndpoint& endpoint_;
  PathCounts direct_counts_;
  VerbsStream stream_;
  Direct direct_;
  std::uint64_t hidden_settled_ = 0;  // by the session, on behalf of direct_
  std::uint64_t by_session_ = 0;      // posted to it
  std::uint64_t last_rma_ = 0;        // of them up to the last that was no message
  std::uint64_t refused_ = 0;         // posted when the link had failed
  mutable RingQueue<Run> runs_;       // has a place for one from the beginning
  mutable std::uint64_t direct_used_ = 0, session_used_ = 0, settled_ = 0;
  std::chrono::nanoseconds heard_at_{};  // VerbsEndpoint::attended()
  std::uint64_t heard_ = 0;
  bool waited_ = false;
};

// The way to one peer: a share in its link.
class VerbsPath final : public Path {
 public:
  VerbsPath(std::shared_ptr<VerbsLink> link, std::string tag)
      : link_(std::move(link)), tag_(std::move(tag)) {}

  std::uint64_t resolve(const RemoteRegion& region) override {
    if ((region.access & access::kHidden) != 0) link_->expect_hidden(region.key);
    return region.key;
  }
  std::size_t post(std::span<const Transfer> batch) noexcept override { return link_->post(batch); }
  Errc state() const noexcept override { return link_->state(); }
  bool idle() const noexcept override {
    const PathCounts all = counts();
    return all.posted == all.settled;
  }
  PathCounts counts() const noexcept override { return link_->counts(); }
  PathReport report() const override { return {tag_, link_->remote()}; }
  void cut() noexcept override { link_->fail(Errc::peer_lost); }

 private:
  std::shared_ptr<VerbsLink> link_;
  std::string tag_;
};

}  // namespace fab::verbs
