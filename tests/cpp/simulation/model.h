#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "fabric/completion/operation.h"
#include "simulation/memory.h"

namespace fab::sim {

class Model;

// A process, by what tells it from all others.
struct Life {
  unsigned number = 0, incarnation = 0;
  auto operator<=>(const Life&) const = default;
};

// An operation of a user, and all that a model knows of it. It and its memory stay until the end of the
// story, so that whoever tells its outcome twice, or touches its memory afterwards, is found out.
struct Task : Operation {
  Model* model = nullptr;
  std::uint64_t id = 0;
  Kind kind = Kind::put;
  Life from{}, to{};
  Home* home = nullptr;
  Transfer transfer{};
  Errc expected = Errc::ok;
  std::unique_ptr<Ground> local{}, result{}, compare{};
  std::vector<iovec> pieces{};       // of the local memory, if there are several
  std::vector<std::byte> content{};  // what is written or sent

  Field* field = nullptr;  // puts and gets
  Cell* cell = nullptr;
  std::size_t at = 0;       // in the cell
  std::size_t element = 0;  // atomics
  std::int64_t swap = 0;
  std::uint64_t place = 0;  // messages: in the order of posting from this process to that one
  bool injected = false, unordered = false, may_be_closed = false;
  bool claimed = false, discarded = false;  // messages

  bool settled = false, abandoned = false;  // abandoned: its process ended before it
  Errc outcome = Errc::ok;
  std::optional<Time> cut_since{};  // since when its target cannot be reached, in attended time
  unsigned notices = 0, receipts = 0;
};

// A posted receive, for one message or for many.
struct Landing : Operation {
  Model* model = nullptr;
  Life at{};
  Ground ground;
  std::vector<iovec> pieces{};  // of the ground, if there are several
  std::uint64_t room;
  std::uint64_t least_room = 0;  // for many messages
  bool settled = false, withdrawn = false;
  Completion outcome{};
  struct Met {
    std::uint64_t offset;
    Task* task;
  };
  std::vector<Met> met{};           // the messages that it was matched with, as they are told
  std::vector<std::byte> landed{};  // the bytes of one for many messages, when it was settled
  explicit Landing(std::size_t size) : ground(size), room(size) {}
};

// What has to hold, for all nodes.
class Model {
 public:
  Model(Story& told, const Settings& common) : story(told), settings(common) {}

  Story& story;
  const Settings& settings;
  std::function<bool(const Life& from, const Life& to)> reachable;

  // --- processes
  void begins(Node& node);
  void ends(Node& node);  // before its memory goes
  Home* home_of(const Life& life) noexcept;

  // --- operations
  Task& new_task(Kind kind, const Node& from, const Life& to);
  void post(Task& task, Path& path, const Node& from);  // or forgets it, if the path is full
  std::size_t open_from(const Life& life) const noexcept;
  Landing& new_landing(Node& node, std::size_t size, std::uint64_t least_room = 0);
  std::size_t landings_open(const Life& life) { return landings_open_[life]; }
  bool any_open() const noexcept { return !open_.empty(); }
  std::string open_text() const;
  // A message was hidden from all other receives, and then perhaps thrown away.
  void claimed(const Message& message);
  void discarded(const Message& message);
  // Somebody can be reached again, or not any more.
  void review(const std::function<const Node*(const Life&)>& find);
  void check_deadlines(const Node& node);
  void read_notices(Node& node);
  // What a compare-and-swap may expect in the element of this process.
  std::int64_t guess(const Life& to);
  void close_passing(Home& home, Share& share);

  void check_home(Home& home);
  void check_all(const std::function<const Node*(const Life&)>& find);
  std::vector<std::unique_ptr<Landing>>& landings() noexcept { return landings_; }

 private:
  static void on_settled(Operation& operation) noexcept;
  static void on_settled_again(Operation& operation) noexcept;
  static void on_landed(Operation& operation) noexcept;
  static void on_landed_again(Operation& operation) noexcept;
  void settled(Task& task);
  void judge(Task& task);
  void judge_put(Task& task);
  void judge_sum(Task& task);
  void judge_swap(Task& task);
  void landed(Landing& landing);
  void met(Landing& landing, const Completion& what);
  Task* sent(std::uint64_t data);  // null: nobody has sent a message with this data
  void check_before(const Task& told);
  void check_field(const Home& home, Field& field, const Life& owner);
  void check_swaps();
  void check_messages(const std::function<const Node*(const Life&)>& find);
  void check_order();
  void wrong(const Task& task, const std::string& what);
  Span bound() const;

  std::map<Life, std::unique_ptr<Home>> homes_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<Task*> open_;
  std::vector<std::unique_ptr<Landing>> landings_;
  std::map<std::pair<Life, Life>, std::uint64_t> places_;
  std::map<Life, std::size_t> landings_open_;
  std::map<Life, std::int64_t> seen_;  // the last value seen in the element for compare-and-swap
};

}  // namespace fab::sim
