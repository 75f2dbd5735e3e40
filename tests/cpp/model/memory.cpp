#include "model/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace model {
namespace {

bool acquires(std::memory_order order) noexcept {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}

bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

}  // namespace

void View::raise(std::size_t location, std::uint32_t store) {
  if (oldest_.size() <= location) oldest_.resize(location + 1);
  oldest_[location] = std::max(oldest_[location], store);
}

void View::join(const View& other) {
  if (oldest_.size() < other.oldest_.size()) oldest_.resize(other.oldest_.size());
  for (std::size_t i = 0; i < other.oldest_.size(); ++i) oldest_[i] = std::max(oldest_[i], other.oldest_[i]);
}

void Message::join(const Message& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
  view.join(other.view);
}

void Memory::begin() {
  ++execution_;
  stores_ = 0;
  consistent_.clear();
  bytes_.clear();
  for (unsigned i = 0; i < kMostThreads; ++i) {
    threads_[i].now.clear();
    threads_[i].acquirable.clear();
    threads_[i].released.clear();
    threads_[i].fresh = 0;
    threads_[i].now.clock[i] = 1;  // 0: has done nothing
  }
}

Memory::Location& Memory::place(std::uintptr_t where) {
  const auto [found, is_new] = locations_.try_emplace(where);
  Location& location = found->second;
  if (is_new) location.number = locations_.size() - 1;
  if (location.execution != execution_) {
    location.execution = execution_;
    location.stores.clear();
    location.user = kMostThreads;
    location.several = location.written = false;
  }
  return location;
}

Memory::Location& Memory::at(std::uintptr_t where, unsigned size) {
  Location& location = place(where);
  if (location.stores.empty()) {
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const void*>(where), size);
    location.size = size;
    location.stores.push_back({value, {}});
  }
  if (location.size != size) std::abort();  // accesses that overlap in part are no part of this model
  return location;
}

bool Memory::touch(unsigned thread, std::uintptr_t where, bool write) {
  Location& location = place(where);
  if (location.user == kMostThreads) location.user = thread;
  location.several |= location.user != thread;
  location.written |= write;
  if (!location.shared && location.several && location.written) location.shared = learned_ = true;
  return location.shared;
}

std::uint32_t Memory::oldest(unsigned thread, const Location& location, std::memory_order order) noexcept {
  ThreadView& self = threads_[thread];
  if (self.fresh != 0) {
    if (self.fresh != ~0u) --self.fresh;
    return static_cast<std::uint32_t>(location.stores.size() - 1);
  }
  const std::uint32_t seen = self.now.view.of(location.number);
  return order == std::memory_order_seq_cst ? std::max(seen, consistent_.of(location.number)) : seen;
}

void Memory::read(unsigned thread, Location& location, std::uint32_t store, std::memory_order order) {
  ThreadView& self = threads_[thread];
  self.now.view.raise(location.number, store);
  if (order == std::memory_order_seq_cst) consistent_.raise(location.number, store);
  (acquires(order) ? self.now : self.acquirable).join(location.stores[store].message);
}

// `store` carries what it continues: of an update, the message of the store that it has read.
void Memory::push(unsigned thread, Location& location, std::uintptr_t where, Store store,
                  std::memory_order order) {
  ThreadView& self = threads_[thread];
  const auto index = static_cast<std::uint32_t>(location.stores.size());
  self.now.view.raise(location.number, index);
  if (order == std::memory_order_seq_cst) consistent_.raise(location.number, index);
  store.message.join(releases(order) ? self.now : self.released);
  if (releases(order)) ++self.now.clock[thread];
  write_real(where, location.size, store.value);
  location.stores.push_back(std::move(store));
  ++stores_;
}

void Memory::write_real(std::uintptr_t where, unsigned size, std::uint64_t value) noexcept {
  std::memcpy(reinterpret_cast<void*>(where), &value, size);
}

std::uint64_t Memory::load(unsigned thread, std::uintptr_t where, unsigned size, std::memory_order order,
                           std::uint64_t step) {
  Location& location = at(where, size);
  const auto last = static_cast<std::uint32_t>(location.stores.size() - 1);
  const unsigned ways = last - oldest(thread, location, order) + 1;
  const std::uint32_t chosen = last - choices_.choose(step, Choices::What::store, ways);
  read(thread, location, chosen, order);
  return location.stores[chosen].value;
}

void Memory::store(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t value,
                   std::memory_order order) {
  push(thread, at(where, size), where, {value, {}}, order);
}

std::uint64_t Memory::newest(std::uintptr_t where, unsigned size) {
  return at(where, size).stores.back().value;
}

void Memory::update(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t value,
                    std::memory_order order) {
  Location& location = at(where, size);
  read(thread, location, static_cast<std::uint32_t>(location.stores.size() - 1), order);
  push(thread, location, where, {value, location.stores.back().message}, order);
}

bool Memory::compare_exchange(unsigned thread, std::uintptr_t where, unsigned size, std::uint64_t& expected,
                              std::uint64_t value, std::memory_order success, std::memory_order failure,
                              std::uint64_t step) {
  Location& location = at(where, size);
  const auto last = static_cast<std::uint32_t>(location.stores.size() - 1);
  std::vector<std::uint32_t> ways{last};  // then the older ones, which only a comparison that fails may read
  for (std::uint32_t store = last, end = oldest(thread, location, failure); store-- > end;)
    if (location.stores[store].value != expected) ways.push_back(store);
  const std::uint32_t chosen =
      ways[choices_.choose(step, Choices::What::store, static_cast<unsigned>(ways.size()))];
  if (chosen == last && location.stores[last].value == expected) {
    update(thread, where, size, value, success);
    return true;
  }
  read(thread, location, chosen, failure);
  expected = location.stores[chosen].value;
  return false;
}

void Memory::fence(unsigned thread, std::memory_order order) {
  ThreadView& self = threads_[thread];
  if (acquires(order)) self.now.join(self.acquirable);
  if (order == std::memory_order_seq_cst) {
    self.now.view.join(consistent_);
    consistent_.join(self.now.view);
  }
  if (releases(order)) {
    self.released = self.now;
    ++self.now.clock[thread];
  }
}

std::string Memory::plain(unsigned thread, std::uintptr_t where, std::size_t size, bool write) {
  const Clock& now = threads_[thread].now.clock;
  for (std::size_t i = 0; i < size; ++i) {
    Byte& byte = bytes_[(where + i) / 8][(where + i) % 8];
    if (byte.written > now[byte.writer])
      return (write ? "written while thread " : "read while thread ") + std::to_string(byte.writer) +
             " writes";
    for (unsigned other = 0; write && other < kMostThreads; ++other)
      if (byte.read[other] > now[other]) return "written while thread " + std::to_string(other) + " reads";
    if (write) {
      byte.written = now[thread];
      byte.writer = thread;
    } else {
      byte.read[thread] = now[thread];
    }
  }
  return {};
}

}  // namespace model
