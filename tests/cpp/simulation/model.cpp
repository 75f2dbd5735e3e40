#include "simulation/model.h"

#include <algorithm>

#include "fabric/types/error.h"

namespace fab::sim {
namespace {

std::string text(const Life& life) {
  return std::to_string(life.number) + "." + std::to_string(life.incarnation);
}

Outcome class_of(Errc error) {
  switch (error) {
    case Errc::ok:
      return Outcome::ok;
    case Errc::key_rejected:
    case Errc::access:
    case Errc::bounds:
    case Errc::invalid:
      return Outcome::refused;
    case Errc::peer_lost:
      return Outcome::lost;
    case Errc::unreachable:
      return Outcome::unreachable;
    case Errc::canceled:
      return Outcome::canceled;
    default:
      return Outcome::other;
  }
}

// What a peer, a connection or this process may do to any operation.
bool is_loss(const Task& task) {
  return task.outcome == Errc::peer_lost || task.outcome == Errc::unreachable ||
         (task.outcome == Errc::canceled && task.abandoned);
}

}  // namespace

void Model::wrong(const Task& task, const std::string& what) {
  story.wrong(std::string(kKindNames[static_cast<std::size_t>(task.kind)]) + " " + std::to_string(task.id) +
              " from " + text(task.from) + " to " + text(task.to) + " (" + name(task.outcome) + "): " + what);
}

// --- processes

void Model::begins(Node& node) {
  homes_.emplace(Life{node.number, node.incarnation}, std::make_unique<Home>(story, node));
}

void Model::ends(Node& node) {
  const Life life{node.number, node.incarnation};
  Home& home = *homes_.at(life);
  check_home(home);
  for (const auto& task : tasks_) task->abandoned |= !task->settled && task->from == life;
  for (const auto& landing : landings_) landing->withdrawn |= !landing->settled && landing->at == life;
  home.node = nullptr;
}

Home* Model::home_of(const Life& life) noexcept {
  const auto found = homes_.find(life);
  return found == homes_.end() || !found->second->node ? nullptr : found->second.get();
}

// --- operations

Task& Model::new_task(Kind kind, const Node& from, const Life& to) {
  Task& task = *tasks_.emplace_back(std::make_unique<Task>());
  task.model = this;
  task.id = tasks_.size();
  task.kind = kind;
  task.from = {from.number, from.incarnation};
  task.to = to;
  task.home = home_of(to);
  task.begin({.context = task.id, .flags = completion_flag::kRma, .hook = &Model::on_settled});
  task.transfer.operation = &task;
  task.transfer.delivery = Delivery::delivery;
  return task;
}

void Model::post(Task& task, Path& path, const Node& from) {
  story.note(task.id << 8 | static_cast<std::uint64_t>(task.kind));
  if (!reachable(task.from, task.to)) task.cut_since = from.attended();
  open_.push_back(&task);
  const bool swaps = task.kind == Kind::compare, sums = task.kind == Kind::add || task.kind == Kind::fetch;
  if (sums && task.home) ++task.home->sums[task.element].tried;
  if (task.field && task.transfer.op == OpCode::write) ++task.field->tried;
  if (task.cell) task.cell->busy = true;
  if (task.kind == Kind::message || task.kind == Kind::announced)
    task.place = ++places_[{task.from, task.to}];
  if (path.post({&task.transfer, 1}) == 1) return;
  // It was not taken: nothing of it has happened.
  std::erase(open_, &task);
  if (sums && task.home) --task.home->sums[task.element].tried;
  if (task.field && task.transfer.op == OpCode::write) --task.field->tried;
  if (task.cell) task.cell->busy = false;
  if (swaps) task.swap = 0;
  task.settled = true;
  task.outcome = Errc::again;
}

std::size_t Model::open_from(const Life& life) const noexcept {
  return static_cast<std::size_t>(
      std::ranges::count_if(open_, [&](const Task* task) { return task->from == life; }));
}

void Model::on_settled(Operation& operation) noexcept {
  auto& task = static_cast<Task&>(operation);
  task.outcome = operation.completion().error;
  operation.begin({.hook = &Model::on_settled_again});
  task.model->settled(task);
}

void Model::on_settled_again(Operation& operation) noexcept {
  const auto& task = static_cast<Task&>(operation);
  task.model->wrong(task, "it was told a second outcome");
}

void Model::settled(Task& task) {
  task.settled = true;
  std::erase(open_, &task);
  ++story.tally
        .operations[static_cast<std::size_t>(task.kind)][static_cast<std::size_t>(class_of(task.outcome))];
  story.note(task.id * 1000 + static_cast<std::uint64_t>(task.outcome));
  judge(task);
  for (Ground* ground : {task.local.get(), task.result.get(), task.compare.get()})
    if (ground) {
      if (!ground->guarded()) wrong(task, "bytes beside its memory were written");
      ground->poison();
    }
}

void Model::judge(Task& task) {
  if (task.cell) task.cell->busy = false;
  const bool unknown =  // to the next process of that name, too
      task.may_be_closed || (settings.same_names && homes_.at(task.to)->node == nullptr);
  if (task.outcome != task.expected && !is_loss(task) && !(unknown && task.outcome == Errc::key_rejected))
    wrong(task, std::string("expected was ") + name(task.expected));
  switch (task.kind) {
    case Kind::put:
    case Kind::notified_put:
    case Kind::durable_put:
    case Kind::striped:
    case Kind::get:
      if (task.field) judge_put(task);
      break;
    case Kind::add:
    case Kind::fetch:
      judge_sum(task);
      break;
    case Kind::compare:
      judge_swap(task);
      break;
    case Kind::refused:
      if (task.outcome == Errc::ok) wrong(task, "it was not refused");
      break;
    case Kind::message:
    case Kind::announced:
      break;
  }
}

void Model::judge_put(Task& task) {
  const bool there = homes_.at(task.to)->node != nullptr;
  Cell& cell = *task.cell;
  std::byte* const memory = task.field->ground.data() + cell.offset + task.at;
  if (task.transfer.op == OpCode::read) {
    if (task.outcome != Errc::ok) return;
    const std::vector<std::byte> brought = gathered(*task.local, task.pieces, 0, task.local->size());
    if (!cell.may_hold(task.at, brought.data(), brought.size())) wrong(task, "it brought other bytes");
    return;
  }
  if (task.outcome != Errc::ok) return cell.maybe_stored(task.at, task.content);
  ++task.field->stored;
  cell.stored(task.at, task.content);
  if (there && !cell.may_hold(task.at, memory, task.content.size()))
    wrong(task, "its bytes are not in the target's memory");
}

void Model::judge_sum(Task& task) {
  Home::Element& element = homes_.at(task.to)->sums[task.element];
  if (task.outcome != Errc::ok) return;
  ++element.done;
  if (task.kind != Kind::fetch) return;
  std::int64_t former = 0;
  std::memcpy(&former, task.result->data(), sizeof former);
  if (former < 0 || static_cast<std::uint64_t>(former) >= element.tried)
    wrong(task,
          "former value " + std::to_string(former) + " of " + std::to_string(element.tried) + " updates");
  if (std::ranges::find(element.formers, former) != element.formers.end())
    wrong(task, "another fetch has found " + std::to_string(former) + " as well");
  element.formers.push_back(former);
}

// The former value is kept in `at`, for check_swaps().
void Model::judge_swap(Task& task) {
  if (task.outcome != Errc::ok) return;
  std::int64_t former = 0;
  std::memcpy(&former, task.result->data(), sizeof former);
  task.at = static_cast<std::size_t>(former);
  std::int64_t expected = 0;
  std::memcpy(&expected, task.content.data(), sizeof expected);
  seen_[task.to] = former == expected ? task.swap : former;
}

std::int64_t Model::guess(const Life& to) { return seen_[to]; }

// --- receives

Landing& Model::new_landing(Node& node, std::size_t size, std::uint64_t least_room) {
  Landing& landing = *landings_.emplace_back(std::make_unique<Landing>(size));
  landing.model = this;
  landing.at = {node.number, node.incarnation};
  ++landings_open_[landing.at];
  landing.least_room = least_room;
  const bool many = least_room != 0;
  if (many && !node.completions.reserve()) story.wrong("the completion queue is full");
  landing.begin({.context = landings_.size(),
                 .flags = completion_flag::kRecv | (many ? completion_flag::kMultiReceive : 0),
                 .queue = many ? &node.completions : nullptr,
                 .hook = &Model::on_landed});
  return landing;
}

void Model::on_landed(Operation& operation) noexcept {
  auto& landing = static_cast<Landing&>(operation);
  landing.outcome = operation.completion();
  operation.begin({.hook = &Model::on_landed_again});
  landing.model->landed(landing);
}

void Model::on_landed_again(Operation& operation) noexcept {
  static_cast<Landing&>(operation).model->story.wrong("a receive was told a second outcome");
}

void Model::landed(Landing& landing) {
  landing.settled = true;
  --landings_open_[landing.at];
  const Completion& what = landing.outcome;
  story.note(what.data * 31 + static_cast<std::uint64_t>(what.error));
  if (!landing.ground.guarded()) story.wrong("a receive wrote beside its memory");
  if (landing.least_room != 0) {  // its messages are told by entries
    landing.landed = gathered(landing.ground, landing.pieces, 0, landing.ground.size());
    if (what.error != Errc::ok && what.error != Errc::canceled)
      story.wrong(std::string("a receive for many ended with ") + name(what.error));
  } else if (what.error != Errc::canceled) {
    met(landing, what);
  }
  landing.ground.poison();
}

Task* Model::sent(std::uint64_t data) {
  const bool known = data != 0 && data <= tasks_.size();
  if (!known) story.wrong("a message that nobody has sent");
  return known ? tasks_[data - 1].get() : nullptr;
}

// The receive was matched with a message, and this became of it.
void Model::met(Landing& landing, const Completion& what) {
  Task* const found = sent(what.data);
  if (!found) return;
  Task& task = *found;
  landing.met.push_back({what.offset, &task});
  if (task.to != landing.at) wrong(task, "it came to somebody else");
  if (task.discarded) wrong(task, "it came although it was discarded");
  if (what.error != Errc::ok && what.error != Errc::truncated) {
    if (what.error != Errc::peer_lost) wrong(task, std::string("its receive ended with ") + name(what.error));
    return;
  }
  ++story.tally.received;
  if (landing.least_room != 0) ++story.tally.received_by_many;
  if (++task.receipts > 1) wrong(task, "it was received twice");
  if (!task.unordered && !task.claimed) check_before(task);
  // A message that is not the first in a receive for many comes whole.
  const std::uint64_t room = landing.room - what.offset;
  const std::uint64_t length = std::min<std::uint64_t>(room, task.content.size());
  if (what.length != length || (what.error == Errc::truncated) != (room < task.content.size()) ||
      (what.offset != 0 && what.error != Errc::ok))
    return wrong(task, "it came with another length");
  if (length == 0) return;
  std::vector<std::byte> now;
  if (landing.landed.empty()) now = gathered(landing.ground, landing.pieces, what.offset, length);
  const std::byte* const came = landing.landed.empty() ? now.data() : landing.landed.data() + what.offset;
  if (std::memcmp(came, task.content.data(), length) != 0) wrong(task, "other bytes came");
}

void Model::claimed(const Message& message) {
  ++story.tally.claimed;
  Task* const task = sent(message.head.data);
  if (!task) return;
  if (task->claimed || task->receipts != 0) wrong(*task, "it was claimed, and not the first time");
  task->claimed = true;
}

void Model::discarded(const Message& message) {
  ++story.tally.discarded;
  Task* const task = sent(message.head.data);
  if (!task) return;
  if (task->discarded || task->receipts != 0) wrong(*task, "it was discarded after it had come");
  task->discarded = true;
}

// --- time

// How long an operation may wait for a peer that cannot be reached: until its rails count as dead, and then
// for as long as the peer may be silent. What was under way on a slow rail comes as a sign of life until
// then.
Span Model::bound() const {
  const Span slack = milliseconds(2500);
  if (settings.plain) return seconds(settings.peer_deadline * 1.25) + slack;
  return seconds(settings.rail_deadline * 1.25 + settings.peer_deadline) + slack;
}

void Model::review(const std::function<const Node*(const Life&)>& find) {
  for (Task* const task : open_) {
    const Node* const node = find(task->from);
    if (!node) continue;
    if (reachable(task->from, task->to))
      task->cut_since.reset();
    else if (!task->cut_since)
      task->cut_since = node->attended();
  }
}

void Model::check_deadlines(const Node& node) {
  const Life life{node.number, node.incarnation};
  for (const Task* const task : open_)
    if (task->from == life && task->cut_since && node.attended() - *task->cut_since > bound())
      return wrong(*task, "it waits beyond its deadline");
}

std::string Model::open_text() const {
  if (open_.empty()) return {};
  const Task& task = *open_.front();
  return std::to_string(open_.size()) + " operations have no outcome, the first is " +
         kKindNames[static_cast<std::size_t>(task.kind)] + " " + std::to_string(task.id) + " from " +
         text(task.from) + " to " + text(task.to);
}

}  // namespace fab::sim
