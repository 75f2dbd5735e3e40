#pragma once

#include "simulation/model.h"

namespace fab::sim {

// The user of one node: posts operations and receives now and then, in the node's turns.
class Client {
 public:
  Client(Model& model, Node& node, Span pause) : model_(model), node_(node), pause_(pause) {}

  void turn();
  void rest() noexcept { resting_ = true; }  // receives what comes, and posts nothing else any more

 private:
  void act();
  void put(Path& path, const Life& to, Home& home, Kind kind);
  void get(Path& path, const Life& to, Home& home);
  void sum(Path& path, const Life& to, bool fetches);
  void swap(Path& path, const Life& to, Home& home);
  void send(Path& path, const Life& to, bool announced);
  void refused(Path& path, const Life& to, Home& home);
  void to_passing(Path& path, const Life& to, Home& home);
  void receive();
  void take_back();
  void post_receive(Landing& landing, const MatchRule& rule);
  void claim();
  void end_claim();
  void keep_receiving();
  void scatter_some(Task& task);
  Cell* idle_cell(Field& field);
  std::vector<std::byte> some_bytes(std::size_t size);
  Task& new_write(Kind kind, const Life& to, std::size_t size);

  static constexpr std::size_t kMostOpen = 24, kMostLandings = 12;
  static constexpr std::size_t kLongest = 24'000;  // bytes of a message

  Model& model_;
  Node& node_;
  const Span pause_;
  Time next_{};
  bool resting_ = false;
  std::vector<std::uint64_t> claims_;  // messages that it has claimed
};

}  // namespace fab::sim
