#include <algorithm>

#include "fabric/types/error.h"
#include "simulation/model.h"

// What is checked now and then, and in the end.
namespace fab::sim {

void Model::read_notices(Node& node) {
  std::vector<Completion> read(64);
  for (;;) {
    const std::size_t count = node.completions.read(read);
    if (count == 0) return;
    for (const Completion& entry : std::span(read).first(count)) {
      if (entry.flags & completion_flag::kMultiReceive) {
        if (entry.context == 0 || entry.context > landings_.size())
          return story.wrong("a message for no receive");
        if (entry.flags & completion_flag::kMore) met(*landings_[entry.context - 1], entry);
        continue;
      }
      if (!(entry.flags & completion_flag::kRemoteData)) {  // a late error
        if (entry.context == 0 || entry.context > tasks_.size())
          return story.wrong("an error of no operation");
        Task& task = *tasks_[entry.context - 1];
        if (!task.injected) return wrong(task, "a late error of what was not injected");
        task.outcome = entry.error;
        continue;
      }
      if (entry.data == 0 || entry.data > tasks_.size())
        return story.wrong("remote data that nobody has sent");
      Task& task = *tasks_[entry.data - 1];
      const Life here{node.number, node.incarnation};
      if (task.kind != Kind::notified_put || task.to != here)
        return wrong(task, "its data came where it does not belong");
      if (++task.notices > 1) return wrong(task, "its data came twice");
      check_before(task);
    }
  }
}

// Who is told of something finds the bytes of all puts that the same process had posted until then.
void Model::check_before(const Task& told) {
  for (const Task* const put : open_) {
    if (!put->field || put->transfer.op != OpCode::write || put->id > told.id) continue;
    if (put->from != told.from || put->to != told.to) continue;
    const std::byte* const memory = put->field->ground.data() + put->cell->offset + put->at;
    if (std::memcmp(memory, put->content.data(), put->content.size()) != 0)
      return wrong(*put,
                   "what came after it was told before its bytes were there: " + std::to_string(told.id));
  }
}

void Model::close_passing(Home& home, Share& share) {
  if (share.closed) return;
  share.closed = true;
  story.fault(Fault::region_closed);
  home.node->close_region(share.passing_region);
  share.passing.poison();
}

void Model::check_field(const Home& home, Field& field, const Life& owner) {
  const std::string of = " of what " + std::to_string(owner.number) + "." +
                         std::to_string(owner.incarnation) + " reaches of node " +
                         std::to_string(home.node->number);
  if (!field.ground.guarded()) return story.wrong("bytes beside a region changed" + of);
  for (const Cell& cell : field.cells)
    if (!cell.busy && !cell.may_hold(0, field.ground.data() + cell.offset, cell.size()))
      return story.wrong("bytes that no put has stored" + of);
  const std::uint64_t counted = home.node->segment.counters()[field.counter].value.load();
  if (counted < field.stored || counted > field.tried)
    story.wrong("a counter says " + std::to_string(counted) + " puts, and it were " +
                std::to_string(field.stored) + " to " + std::to_string(field.tried) + of);
}

void Model::check_home(Home& home) {
  for (const auto& [owner, share] : home.shares) {
    const Life life{owner.first, owner.second};
    for (Field* field : {&share->small, &share->medium, share->large.get()})
      if (field) check_field(home, *field, life);
    if (!share->passing.guarded()) story.wrong("bytes beside a region that closes changed");
    if (share->closed && !share->passing.poisoned()) story.wrong("a closed region changed");
  }
  const auto untouched = [](Ground& ground, std::byte fill) {
    return ground.guarded() && std::all_of(ground.data(), ground.data() + ground.size(),
                                           [fill](std::byte byte) { return byte == fill; });
  };
  if (!untouched(home.read_only, std::byte{0x5A})) story.wrong("a region that is only to be read changed");
  if (!untouched(home.write_only, std::byte{0x5B}))
    story.wrong("a region changed that nobody has written to");
  if (!home.numbers.guarded()) story.wrong("bytes beside the numbers changed");
  for (std::size_t i = 0; i < std::size(home.sums); ++i) {
    const auto value = static_cast<std::uint64_t>(home.element(i));
    if (value < home.sums[i].done || value > home.sums[i].tried)
      story.wrong("a sum is " + std::to_string(value) + " after " + std::to_string(home.sums[i].done) +
                  " to " + std::to_string(home.sums[i].tried) + " updates");
  }
}

// Each value is put there by one swap, and taken away by one. A swap that found what it expected was done; if
// it was told otherwise, its value is seen although nobody has put it there.
void Model::check_swaps() {
  std::map<std::pair<Life, std::int64_t>, const Task*> taken;
  std::set<std::pair<Life, std::int64_t>> possible;
  const auto expected_of = [](const Task& task) {
    std::int64_t expected = 0;
    std::memcpy(&expected, task.content.data(), sizeof expected);
    return expected;
  };
  for (const auto& task : tasks_) {
    if (task->kind != Kind::compare || task->swap == 0) continue;
    const auto former = static_cast<std::int64_t>(task->at);
    const bool done = task->outcome == Errc::ok && former == expected_of(*task);
    if (done || task->outcome != Errc::ok) possible.insert({task->to, task->swap});
    if (done && !taken.try_emplace({task->to, former}, task.get()).second)
      wrong(*task, "two swaps took the same value away");
  }
  for (const auto& task : tasks_) {
    if (task->kind != Kind::compare || task->swap == 0 || task->outcome != Errc::ok) continue;
    const auto former = static_cast<std::int64_t>(task->at);
    if (former != 0 && !possible.contains({task->to, former}))
      wrong(*task, "it found a value that nobody has put there");
  }
}

void Model::check_messages(const std::function<const Node*(const Life&)>& find) {
  for (const auto& task : tasks_) {
    if (task->kind == Kind::notified_put && task->outcome == Errc::ok && task->notices == 0 && find(task->to))
      wrong(*task, "its data never came");
    if (task->kind != Kind::message && task->kind != Kind::announced) continue;
    const bool told = task->outcome == Errc::ok && task->settled && find(task->to) && !task->discarded &&
                      (!task->injected || (find(task->from) && !settings.plain));
    if (!told || task->receipts != 0) continue;
    const auto met = std::ranges::find_if(landings_, [&](const auto& landing) {
      return landing->settled && landing->outcome.data == task->id;  // of receives for many: not known
    });
    wrong(*task, "it was told complete, and " +
                     (met == landings_.end()
                          ? "never received"
                          : std::string("its receive ended with ") + name((*met)->outcome.error)));
  }
}

// Messages with one tag from one process meet receives in the order of sending. A claimed one waits for the
// receive that it is given to.
void Model::check_order() {
  std::map<std::tuple<Life, Life, std::uint64_t>, std::uint64_t> latest;
  for (const auto& landing : landings_) {
    // In a receive for many the order is that of the places; messages without bytes share theirs with others.
    std::ranges::sort(landing->met, {},
                      [](const auto& met) { return std::pair(met.offset, met.task->place); });
    for (const auto& [offset, met] : landing->met) {
      if (met->unordered || met->claimed) continue;
      std::uint64_t& last = latest[{met->from, met->to, met->transfer.key}];
      if (met->place < last) return wrong(*met, "it met a receive behind a later one");
      last = met->place;
    }
  }
}

void Model::check_all(const std::function<const Node*(const Life&)>& find) {
  for (const auto& [life, home] : homes_)
    if (home->node) check_home(*home);
  for (const auto& task : tasks_)
    for (Ground* ground : {task->local.get(), task->result.get(), task->compare.get()})
      if (ground && task->settled && task->outcome != Errc::again && !ground->poisoned())
        wrong(*task, "its memory was written after its outcome");
  for (const auto& landing : landings_)
    if (landing->settled && !landing->ground.poisoned())
      story.wrong("a receive was written to after its outcome");
  check_swaps();
  check_messages(find);
  check_order();
}

}  // namespace fab::sim
