#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/choices.h"

namespace model {

inline constexpr unsigned kMostThreads = 6;

// How far each thread was, as somebody knows it: what it did up to there happened before.
using Clock = std::array<std::uint32_t, kMostThreads>;

// For each location, by its number, the oldest store that may still be read.
class View {
 public:
  std::uint32_t of(std::size_t location) const noexcept {
    return location < oldest_.size() ? oldest_[location] : 0;
  }
  void raise(std::size_t location, std::uint32_t store);
  void join(const View& other);
  void clear() noexcept { oldest_.clear(); }

 private:
  std::vector<std::uint32_t> oldest_;
};

// What whoever acquires gets of whoever released.
struct Message {
  Clock clock{};
  View view;
  void join(const Message& other);
  void clear() noexcept {
    clock = {};
    view.clear();
  }
};

// The memory of one execution as C++ describes it, apart from one thing (model.h): each location has its
// stores in the order in which they were executed, and a load reads any of them that its thread may still
// read. The real memory always holds the newest, so that code that the model does not watch, such as setup(),
// works.
class Memory {
 public:
  explicit Memory(Choices& choices) : choices_(choices) {}

  // A new execution begins. All that is in memory happened before it.
  void begin();
  // --- what threads do, each by its number. `step` is for choices.
  std::uint64_t load(unsigned thread, std::uintptr_t where, unsigned size, std::memory_order order,
                     std::uint64_t step);
  void store(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t value,
             std::memory_order order);
  // An update puts another value in the place of the newest.
  std::uint64_t newest(std::uintptr_t where, unsigned size);
  void update(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t value,
              std::memory_order order);
  // A comparison that finds another value may have read an older store. False: so it was.
  bool compare_exchange(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t& expected,
                        std::uint64_t value, std::memory_order success, std::memory_order failure,
                        std::uint64_t step);
  void fence(unsigned thread, std::memory_order order);
  // All that `other` did happened before what the thread does from now on.
  void follow(unsigned thread, unsigned other) { threads_[thread].now.join(threads_[other].now); }
  // Bytes that are read or written without an atomic. Returns what is wrong with that: empty, or a data race.
  std::string plain(unsigned thread, std::uintptr_t where, std::size_t size, bool write);
  // The next load, or all from now on, read the newest store.
  void refresh(unsigned thread, bool all) noexcept { threads_[thread].fresh = all ? ~0u : 1; }
  void end_refresh(unsigned thread) noexcept { threads_[thread].fresh = 0; }

  // --- which locations several threads use. At all others, nobody notices what a thread does, so that
  // nothing is won by letting another one go first. Notes that a thread is about to use a location. True if
  // it is known that others do.
  bool touch(unsigned thread, std::uintptr_t where, bool write);
  // Whether touch() has found another such location since this was asked last: then what was explored before
  // is not complete.
  bool learned() noexcept { return std::exchange(learned_, false); }
  std::uint64_t stores() const noexcept { return stores_; }  // of this execution so far

 private:
  struct Store {
    std::uint64_t value;
    Message message;
  };
  struct Location {
    std::uint64_t execution = 0;
    std::size_t number = 0;
    unsigned size = 0;
    std::vector<Store> stores;
    unsigned user = kMostThreads;  // the first thread that used it
    bool several = false, written = false;
    bool shared = false;  // kept for all executions
  };
  struct ThreadView {
    Message now;
    Message acquirable;  // what was read without acquiring: an acquire fence takes it
    Message released;    // at the last release fence
    unsigned fresh = 0;  // so many loads read the newest store
  };
  struct Byte {
    std::uint32_t written = 0;
    unsigned writer = 0;
    Clock read{};
  };
  using Bytes = std::array<Byte, 8>;

  Location& at(std::uintptr_t where, unsigned size);
  Location& place(std::uintptr_t where);
  void read(unsigned thread, Location& location, std::uint32_t store, std::memory_order order);
  void push(unsigned thread, Location& location, std::uintptr_t where, Store store, std::memory_order order);
  std::uint32_t oldest(unsigned thread, const Location& location, std::memory_order order) noexcept;
  static void write_real(std::uintptr_t where, unsigned size, std::uint64_t value) noexcept;

  Choices& choices_;
  std::uint64_t execution_ = 0, stores_ = 0;
  bool learned_ = false;
  std::unordered_map<std::uintptr_t, Location> locations_;
  std::array<ThreadView, kMostThreads> threads_;
  // What sequentially consistent operations have stored or read: none that follows reads anything older.
  View consistent_;
  std::unordered_map<std::uintptr_t, Bytes> bytes_;
};

}  // namespace model
