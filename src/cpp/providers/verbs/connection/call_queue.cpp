#include "providers/verbs/connection/call_queue.h"

#include <algorithm>
#include <utility>

namespace fab::verbs {

WaitingCall CallQueue::pop(Sources::iterator from, bool last) noexcept {
  auto& calls = from->second;
  WaitingCall call = std::move(last ? calls.back() : calls.front());
  last ? calls.pop_back() : calls.pop_front();
  --size_;
  if (calls.empty()) calls_.erase(from);
  return call;
}

std::optional<WaitingCall> CallQueue::add(WaitingCall call) {
  const auto own = calls_.find(call.source);
  const std::size_t before = own == calls_.end() ? 0 : own->second.size();
  if (before >= most_of_one_) return call;
  std::optional<WaitingCall> dropped;
  if (size_ >= most_) {
    const auto most =
        std::ranges::max_element(calls_, {}, [](const auto& source) { return source.second.size(); });
    if (most->second.size() <= before + 1) return call;
    dropped = pop(most, true);
  }
  // The source's queue must not stay empty if there is no memory for the call.
  const auto [at, made] = calls_.try_emplace(call.source);
  try {
    at->second.push_back(std::move(call));
  } catch (...) {
    if (made) calls_.erase(at);
    throw;
  }
  ++size_;
  return dropped;
}

std::optional<WaitingCall> CallQueue::take(const std::function<bool(const std::string& source)>& may) {
  auto at = calls_.upper_bound(turn_);
  for (std::size_t left = calls_.size(); left-- > 0; ++at) {
    if (at == calls_.end()) at = calls_.begin();
    if (!may(at->first)) continue;
    turn_ = at->first;
    return pop(at, false);
  }
  return {};
}

std::optional<WaitingCall> CallQueue::take_older(Clock::time_point before) noexcept {
  for (auto at = calls_.begin(); at != calls_.end(); ++at)
    if (at->second.front().since <= before) return pop(at, false);
  return {};
}

}  // namespace fab::verbs
