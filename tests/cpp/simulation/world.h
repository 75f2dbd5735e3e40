#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulation/client.h"

namespace fab::sim {

// All nodes with their users, what befalls them, and the end in which everything has to be in order again.
class World {
 public:
  explicit World(Story& story);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void run();

 private:
  struct Place {  // of a node
    std::unique_ptr<Node> node;
    std::unique_ptr<Client> client;
    unsigned incarnation = 0;
    bool starts = false;  // it will be started again
  };

  Settings choose_settings();
  void start(unsigned number);
  void stop(unsigned number, bool dies);
  void restart_later(unsigned number, Span most);
  void introduce(unsigned number, unsigned to);
  const Node* find(const Life& life) const;
  bool reachable(const Life& from, const Life& to) const;
  void review();

  // --- faults
  void faults();
  void befall();
  void cut();
  void silence();
  void slow();
  void starve();
  void isolate();
  void swizzle();
  void close_region();
  void rename();
  Node* any_node();
  void quiet(unsigned a, unsigned b, unsigned rail, Span span);

  void heal();
  void until_settled(Time& look);
  void cut_off(unsigned node);
  void settle_all();
  void end_all();

  Story& story_;
  const Settings settings_;
  const Span pause_, calm_;  // between actions of a user, and between faults
  mutable Network network_;
  Model model_;
  std::vector<Place> places_;
  bool storm_ = true;
  std::optional<unsigned> lonely_{};  // a node that stays cut off when all else is well again
};

// What became of one seed.
struct Result {
  std::uint64_t seed = 0;
  std::string wrong{};  // empty: nothing
  std::uint64_t trace = 0;
  Tally tally{};
  std::vector<std::uint64_t> states{};
};
Result tell(std::uint64_t seed);

}  // namespace fab::sim
