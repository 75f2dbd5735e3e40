#pragma once

#include <memory>
#include <string>

#include "fabric/provider.h"
#include "providers/tcp/stream.h"

namespace fab::tcp {

// The way to one peer: a share in its stream.
class TcpPath final : public Path {
 public:
  TcpPath(std::shared_ptr<TcpStream> stream, std::string link)
      : stream_(std::move(stream)), link_(std::move(link)) {}

  std::size_t post(std::span<const Transfer> batch) noexcept override { return stream_->post(batch); }
  Errc state() const noexcept override { return stream_->state(); }
  bool idle() const noexcept override { return counts().posted == counts().settled; }
  PathCounts counts() const noexcept override { return stream_->counts(); }
  std::uint64_t oldest() const noexcept override { return stream_->oldest(); }
  PathReport report() const override { return {link_, stream_->remote()}; }
  void cut() noexcept override { stream_->fail(Errc::peer_lost); }

 private:
  std::shared_ptr<TcpStream> stream_;
  std::string link_;
};

}  // namespace fab::tcp
