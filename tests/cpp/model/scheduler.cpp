#include "model/scheduler.h"

#include <sched.h>

#include <cerrno>
#include <utility>

namespace model {
namespace {

constexpr std::uint64_t kMostSteps = 100'000;
constexpr std::uint64_t kMostQuiet =
    600;  // product code may look some 64 times before it does something else

thread_local Scheduler* tls_scheduler = nullptr;
thread_local unsigned tls_self = 0, tls_unwatched = 0;

void wait_for(sem_t& semaphore) noexcept {
  while (::sem_wait(&semaphore) != 0 && errno == EINTR) {
  }
}

const char* called(std::memory_order order) noexcept {
  static constexpr const char* kNames[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
  return kNames[static_cast<int>(order)];
}

// The turn is handed on faster between threads on one processor.
void stay_on_one_processor() noexcept {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

// As the first thread-local object of a thread, it goes when all others are gone.
struct Leaver {
  Scheduler* scheduler;
  ~Leaver() { scheduler->ended(); }
};

}  // namespace

Scheduler* watching() noexcept { return tls_unwatched == 0 ? tls_scheduler : nullptr; }
Unwatched::Unwatched() noexcept { ++tls_unwatched; }
Unwatched::~Unwatched() { --tls_unwatched; }

Scheduler::Scheduler(const Scenario& scenario, const Options& options)
    : scenario_(scenario), options_(options) {
  stay_on_one_processor();
  ::sem_init(&all_ended_, 0, 0);
  for (unsigned i = 0; i < scenario.threads.size(); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->number = i;
    ::sem_init(&workers_.back()->turn, 0, 0);
  }
  if (!scenario.ends) start_threads();
}

Scheduler::~Scheduler() {
  if (!abandoned_ && !scenario_.ends) stop_threads();
  // Threads of an execution that nobody can end stay where they are, and so does what they wait for.
  static auto* const given_up = new std::vector<std::unique_ptr<Worker>>;
  for (auto& worker : workers_) {
    if (!abandoned_) continue;
    worker->thread.detach();
    given_up->push_back(std::move(worker));
  }
}

unsigned Scheduler::self() noexcept { return tls_self; }

// --- executions

Result Scheduler::explore() {
  for (;;) {
    run_once();
    ++executions_;
    if (!finding_.empty()) return result(false);
    if (memory_.learned()) {
      choices_.clear();
      executions_ = 0;
    } else if (!choices_.next()) {
      return result(true);
    }
    if (executions_ == options_.most) return result(false);
  }
}

Result Scheduler::replay(const std::string& schedule) {
  choices_.follow(schedule);
  tells_ = true;
  run_once();
  executions_ = 1;
  return result(false);
}

Result Scheduler::result(bool exhaustive) const {
  return {executions_, exhaustive, finding_, schedule_, story_};
}

void Scheduler::run_once() {
  if (scenario_.setup) scenario_.setup();
  choices_.begin();
  memory_.begin();
  step_ = quiet_ = 0;
  preemptions_ = options_.preemptions;
  for (auto& worker : workers_) {
    worker->state = State::ready;
    worker->stores = 0;
    worker->in_vain = 0;
    worker->stopped = false;
  }
  if (scenario_.ends) start_threads();
  const unsigned first =
      choices_.choose(step_, Choices::What::thread, static_cast<unsigned>(workers_.size()));
  ::sem_post(&workers_[first]->turn);
  wait_for(all_ended_);
  if (abandoned_) return;
  if (scenario_.ends)
    for (auto& worker : workers_) worker->thread.join();
  if (finding_.empty() && scenario_.finish) scenario_.finish();
}

void Scheduler::start_threads() {
  for (auto& worker : workers_) worker->thread = std::thread([this, &worker = *worker] { run(worker); });
}

void Scheduler::stop_threads() {
  for (auto& worker : workers_) {
    worker->leaves = true;
    ::sem_post(&worker->turn);
    worker->thread.join();
  }
}

void Scheduler::run(Worker& worker) {
  tls_self = worker.number;
  const auto once = [&] {
    tls_scheduler = this;
    scenario_.threads[worker.number]();
  };
  if (scenario_.ends) {
    thread_local const Leaver leaver{this};
    wait_for(worker.turn);
    once();
    return;
  }
  for (wait_for(worker.turn); !worker.leaves; wait_for(worker.turn)) {
    once();
    ended();
  }
}

void Scheduler::ended() {
  tls_scheduler = nullptr;
  me().state = State::ended;
  tell("ends");
  leave();
}

// --- turns

bool Scheduler::can_go(const Worker& worker) const noexcept {
  switch (worker.state) {
    case State::ready:
      return true;
    case State::yields:
      return memory_.stores() != worker.stores;
    case State::waits:
      return *worker.while_set == 0;
    case State::ended:
      break;
  }
  return false;
}

std::vector<Scheduler::Worker*> Scheduler::others(const Worker& self) const {
  std::vector<Worker*> found;
  for (const auto& worker : workers_)
    if (worker.get() != &self && !worker->stopped && can_go(*worker)) found.push_back(worker.get());
  return found;
}

// Before an operation of the thread that has the turn. The order is the one to be used.
std::memory_order Scheduler::begin(Kind kind, std::uintptr_t where, std::memory_order order) {
  if (me().stopped) return order;
  before(kind == Kind::fence || memory_.touch(self(), where, kind != Kind::load));
  for (const Weaker& weaker : options_.weaker) {
    const auto from = first_address(reinterpret_cast<std::uintptr_t>(weaker.where));
    if (weaker.kind == kind && (from == 0 || where - from < weaker.size) &&
        weaker.thread.value_or(self()) == self())
      order = weaker.order;
  }
  return order;
}

void Scheduler::before(bool noticed) {
  if (++step_ > kMostSteps) give_up("the execution does not end");
  if ((!noticed && !tells_) || preemptions_ == 0) return;
  const std::vector<Worker*> ways = others(me());
  const unsigned chosen =
      choices_.choose(step_, Choices::What::thread, static_cast<unsigned>(ways.size()) + 1);
  if (chosen == 0) return;
  --preemptions_;
  hand_to(*ways[chosen - 1]);
}

// The thread that has the turn cannot go on now.
void Scheduler::leave() {
  ++step_;
  const std::vector<Worker*> ways = others(me());
  if (!ways.empty()) {
    quiet_ = 0;
    return hand_to(*ways[choices_.choose(step_, Choices::What::thread, static_cast<unsigned>(ways.size()))]);
  }
  std::size_t yield = 0, end = 0;
  for (const auto& worker : workers_) {
    if (worker->stopped && worker->state == State::ready) return hand_to(*worker);  // it ends unnoticed
    yield += worker->state == State::yields;
    end += worker->state == State::ended;
  }
  if (yield != 0) return hand_to(look_again());
  if (end != workers_.size()) give_up("each thread waits for another one");
  ::sem_post(&all_ended_);
}

// The next of those who have looked in vain.
Scheduler::Worker& Scheduler::look_again() {
  if (++quiet_ > kMostQuiet) give_up("threads look again and again in vain");
  unsigned next = self();
  do next = (next + 1) % static_cast<unsigned>(workers_.size());
  while (workers_[next]->state != State::yields);
  return *workers_[next];
}

void Scheduler::hand_to(Worker& next) {
  Worker& worker = me();
  if (&next == &worker) return;
  const bool ends = worker.state == State::ended;
  ::sem_post(&next.turn);  // from here on, the other thread has all that is not this thread's own
  if (!ends) wait_for(worker.turn);
}

void Scheduler::give_up(const std::string& why) {
  fail(why);
  abandoned_ = true;
  Worker& worker = me();
  ::sem_post(&all_ended_);
  for (;;) wait_for(worker.turn);
}

void Scheduler::fail(const std::string& what) {
  if (!finding_.empty() || (tls_scheduler && me().stopped)) return;
  tell("finds: " + what);
  finding_ = what;
  schedule_ = choices_.schedule();
  preemptions_ = 0;
  tells_ = false;
}

void Scheduler::tell(const std::string& what) {
  if (!tells_) return;
  story_ += std::to_string(step_) + ": thread " + std::to_string(self()) + " " + what + "\n";
}

// --- operations

std::uint64_t Scheduler::load(std::uintptr_t where, unsigned size, std::memory_order order) {
  order = begin(Kind::load, where, order);
  if (me().stopped) return memory_.newest(where, size);
  const std::uint64_t value = memory_.load(self(), where, size, order, step_);
  if (tells_)
    tell("reads " + model::called(where) + " = " + std::to_string(value) +
         (value == memory_.newest(where, size) ? "" : ", which is old") + " (" + called(order) + ")");
  return value;
}

void Scheduler::store(std::uintptr_t where, unsigned size, std::uint64_t value, std::memory_order order) {
  order = begin(Kind::store, where, order);
  if (me().stopped) return;
  memory_.store(self(), where, size, value, order);
  stored("stores", where, value, order);
}

bool Scheduler::compare_exchange(std::uintptr_t where, unsigned size, std::uint64_t& expected,
                                 std::uint64_t value, std::memory_order success, std::memory_order failure) {
  success = begin(Kind::update, where, success);
  if (me().stopped) return true;
  const bool done = memory_.compare_exchange(self(), where, size, expected, value, success, failure, step_);
  if (done) {
    stored("exchanges", where, value, success);
  } else if (tells_) {
    tell("fails to exchange " + model::called(where) + " = " + std::to_string(expected));
  }
  return done;
}

void Scheduler::stored(const char* what, std::uintptr_t where, std::uint64_t value, std::memory_order order) {
  quiet_ = 0;
  me().in_vain = 0;
  memory_.end_refresh(self());
  if (tells_)
    tell(std::string(what) + " " + model::called(where) + " := " + std::to_string(value) + " (" +
         called(order) + ")");
}

void Scheduler::fence(std::memory_order order) {
  order = begin(Kind::fence, 0, order);
  if (me().stopped) return;
  memory_.fence(self(), order);
  if (tells_) tell(std::string("fence (") + called(order) + ")");
}

void Scheduler::plain(std::uintptr_t where, std::size_t size, bool write) {
  if (me().stopped || !is_watched(where, size)) return;
  if (tells_) tell((write ? "writes " : "reads plainly ") + model::called(where));
  const std::string wrong = memory_.plain(self(), where, size, write);
  if (!wrong.empty()) fail("data race: " + model::called(where) + " is " + wrong);
}

// --- what is no operation on memory

// The first word of a mutex is 1 while it is held, and 0 for those who lock it outside of the model.
void Scheduler::lock(std::uintptr_t mutex) {
  begin(Kind::update, mutex, std::memory_order_acquire);
  if (me().stopped) return;
  while (memory_.newest(mutex, sizeof(int)) != 0) {
    me().while_set = reinterpret_cast<const int*>(mutex);
    me().state = State::waits;
    leave();
    me().state = State::ready;
  }
  memory_.update(self(), mutex, sizeof(int), 1, std::memory_order_acquire);
  tell("locks");
}

bool Scheduler::try_lock(std::uintptr_t mutex) {
  begin(Kind::update, mutex, std::memory_order_acquire);
  if (me().stopped || memory_.newest(mutex, sizeof(int)) != 0) return false;
  memory_.update(self(), mutex, sizeof(int), 1, std::memory_order_acquire);
  return true;
}

void Scheduler::unlock(std::uintptr_t mutex) {
  begin(Kind::store, mutex, std::memory_order_release);
  if (me().stopped) return;
  memory_.store(self(), mutex, sizeof(int), 0, std::memory_order_release);
  tell("unlocks");
}

void Scheduler::yield() {
  Worker& worker = me();
  if (worker.stopped) return;
  worker.in_vain = memory_.stores() == worker.stores ? worker.in_vain + 1 : 1;
  worker.stores = memory_.stores();
  worker.state = State::yields;
  tell("yields");
  leave();
  worker.state = State::ready;
  memory_.refresh(self(), worker.in_vain > 1);
}

void Scheduler::stop(unsigned thread) {
  before(true);  // the caller itself is not stopped by others
  workers_[thread]->stopped = workers_[thread]->state != State::ended;
  memory_.follow(self(), thread);
  tell("stops thread " + std::to_string(thread));
}

void Scheduler::send(int& missing) {
  if (!me().stopped) before(true);
  if (me().stopped) return;
  missing = 0;
  tell("signals");
}

void Scheduler::wait(int& missing) {
  if (!me().stopped) before(true);
  if (me().stopped) return;
  tell("waits for a signal");
  if (missing != 0) {
    me().while_set = &missing;
    me().state = State::waits;
    leave();
    me().state = State::ready;
  }
  missing = 1;
}

}  // namespace model
