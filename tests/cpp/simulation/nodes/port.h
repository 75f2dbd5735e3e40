#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/provider.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "simulation/nodes/network.h"

namespace fab::sim {

class Node;
class Port;

// One end of a connection to another port, with its session, as a stream of the tcp link: what is posted
// before there is a wire waits in the session.
class Stream final {
 public:
  Stream(Port& port, std::string peer);
  ~Stream();

  Port* port() const noexcept { return port_; }
  const std::string& peer() const noexcept { return peer_; }  // the id of the port at the other end
  Session& session() noexcept { return session_; }
  Errc state() const noexcept { return state_; }
  const PathCounts& counts() const noexcept { return counts_; }
  bool open() const noexcept { return wire_ != nullptr; }
  bool connecting() const noexcept { return connecting_; }
  std::uint64_t attempt() const noexcept { return attempt_; }
  std::uint64_t number() const noexcept { return number_; }  // of the connection, the same at both ends

  void calls() noexcept;
  void attempt_failed(Errc error);
  void adopt(std::shared_ptr<Wire> wire, int side, std::uint64_t number);
  void defer(Call call) { deferred_.push_back(std::move(call)); }

  std::size_t post(std::span<const Transfer> batch) noexcept;
  bool receive() noexcept;
  bool send() noexcept;
  void forget(std::uint32_t region) noexcept;
  void tick() noexcept;
  void fail(Errc error) noexcept;
  void detach(Errc error) noexcept;
  void unplug() noexcept;               // loses its wire, and goes on as if nothing had happened
  void send_last() noexcept;            // what waits, as far as the wire takes it
  std::uint64_t look() const noexcept;  // a hash of the state in which it is

 private:
  bool flush() noexcept;
  bool take_in() noexcept;
  void on_output() noexcept;

  Port* port_;  // null once detached
  const std::string peer_;
  PathCounts counts_;
  Session session_;
  Errc state_ = Errc::ok;
  std::shared_ptr<Wire> wire_;
  int side_ = 0;
  bool connecting_ = false, receiving_ = false;
  std::uint64_t attempt_ = 0, number_ = 0, received_ = 0;
  Liveness::Time called_at_{};
  Liveness liveness_, completes_frames_;
  std::vector<Call> deferred_;
};

class StreamPath final : public Path {
 public:
  StreamPath(std::shared_ptr<Stream> stream, std::string link)
      : stream_(std::move(stream)), link_(std::move(link)) {}
  std::size_t post(std::span<const Transfer> batch) noexcept override { return stream_->post(batch); }
  Errc state() const noexcept override { return stream_->state(); }
  bool idle() const noexcept override { return counts().posted == counts().settled; }
  PathCounts counts() const noexcept override { return stream_->counts(); }
  std::uint64_t oldest() const noexcept override { return stream_->session().oldest(); }
  PathReport report() const override { return {link_, "wire"}; }
  void cut() noexcept override { stream_->fail(Errc::peer_lost); }

 private:
  std::shared_ptr<Stream> stream_;
  std::string link_;
};

// A node's end of one rail.
class Port final : public Endpoint {
 public:
  Port(Node& node, unsigned rail);
  ~Port() override;

  Node& node() noexcept { return node_; }
  unsigned rail() const noexcept { return rail_; }
  const std::string& id() const noexcept { return id_; }
  const std::string& link() const noexcept { return link_; }
  const std::map<std::string, std::shared_ptr<Stream>>& streams() const noexcept { return streams_; }

  std::vector<Part> parts() const override { return {{link_, 0, id_}}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {true, "simulated"}; }
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target, std::size_t) override;
  bool progress() noexcept override;
  bool arm() noexcept override { return true; }
  void forget(std::uint32_t region) noexcept override;
  void end_removed_keys() noexcept override {}

  void admit(const Call& call);
  void retire(Stream& stream) noexcept;
  void tick() noexcept;

 private:
  Node& node_;
  const unsigned rail_;
  const std::string link_, id_;
  std::map<std::string, std::shared_ptr<Stream>> streams_;  // by the peer's id
  std::vector<std::shared_ptr<Stream>> ended_;              // until nobody is within one of them
  std::size_t turn_ = 0;
};

}  // namespace fab::sim
