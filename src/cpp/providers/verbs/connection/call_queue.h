#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "providers/verbs/connection/private_data.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// A call that nobody has answered yet. It is the only owner of its id: who drops it refuses it.
struct WaitingCall {
  OwnId id;
  rdma_conn_param asked{};  // without the private data
  PrivateData data;
  std::string source{};  // as source_of()
  Clock::time_point since;
};

// The calls that wait for an answer. Sources take turns, so that one that calls often delays no other; the
// calls of one source wait in the order in which they came. Used under the context's lock.
class CallQueue {
 public:
  static constexpr std::size_t kMost = 4096, kMostOfOne = kMost / 4 * 3;

  // At most `most` calls wait, three quarters of them from one source.
  explicit CallQueue(std::size_t most = kMost) noexcept : most_(most), most_of_one_(most - most / 4) {}

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }

  // Returns the call that finds no room: this one or, where all sources together fill the queue, the last one
  // of the source that has the most. Throws std::bad_alloc.
  std::optional<WaitingCall> add(WaitingCall call);
  // The next call, of the sources for which `may` returns true. `may` is asked about each source at most
  // once.
  std::optional<WaitingCall> take(const std::function<bool(const std::string& source)>& may);
  // The first call that has waited since `before`, or longer.
  std::optional<WaitingCall> take_older(Clock::time_point before) noexcept;

 private:
  using Sources = std::map<std::string, std::deque<WaitingCall>>;
  WaitingCall pop(Sources::iterator from, bool last) noexcept;

  const std::size_t most_, most_of_one_;
  Sources calls_;     // none of the queues is empty
  std::string turn_;  // the source whose call was taken last
  std::size_t size_ = 0;
};

}  // namespace fab::verbs
