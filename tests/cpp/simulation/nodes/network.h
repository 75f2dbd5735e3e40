#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simulation/nodes/wire.h"

namespace fab::sim {

class Port;
class Stream;

// Somebody calls a port.
struct Call {
  std::string from;  // the id of the calling port
  std::weak_ptr<Stream> caller;
  std::uint64_t attempt = 0;
};

// The roads between all nodes, the connections over them, and who listens where.
class Network {
 public:
  Network(Story& story, unsigned nodes, unsigned rails);

  Road& road(unsigned a, unsigned b, unsigned rail);
  unsigned rails() const noexcept { return rails_; }
  void listen(Port& port);
  void leave(Port& port);
  // Calls the port of this id, now and again until there is an answer or the caller gives up.
  void call(const std::shared_ptr<Stream>& caller);
  // The called side takes the call: both ends get the wire, the caller a little later.
  std::shared_ptr<Wire> answer(const Call& call, const std::shared_ptr<Stream>& called);
  void refuse(const Call& call);
  // Connections that stand, of which faults choose.
  std::vector<std::shared_ptr<Wire>> wires();
  // Between these nodes, over this rail.
  void heal(unsigned a, unsigned b, unsigned rail);

 private:
  struct Standing {
    std::weak_ptr<Wire> wire;
    const Road* road;
  };
  void arrive(const Call& call, const std::string& to);
  // Tells the caller, on its node's turn.
  void tell(const Call& call, std::function<void(Stream*)> what);

  Story& story_;
  const unsigned nodes_, rails_;
  std::vector<Road> roads_;
  std::map<std::string, Port*> ports_;
  std::vector<Standing> wires_;
};

}  // namespace fab::sim
