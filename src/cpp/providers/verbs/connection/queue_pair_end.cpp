#include "providers/verbs/connection/queue_pair_end.h"

#include <exception>
#include <utility>

namespace fab::verbs {

QueuePairEnd::~QueuePairEnd() {
  // No note of this queue pair may outlive it: its address may become that of another.
  if (watched_) events_.ignore(*watched_, *this);
  id_.reset();
  if (queue_) completions_.give_room(*queue_, room_);
}

bool QueuePairEnd::watch(const ibv_qp& queue_pair) noexcept try {
  events_.watch(queue_pair, *this);
  watched_ = &queue_pair;
  return true;
} catch (const std::exception&) {
  return false;
}

ibv_cq* QueuePairEnd::take_room(std::uint32_t completions) noexcept {
  queue_ = completions_.take_room(completions);
  room_ = completions;
  return queue_;
}

void QueuePairEnd::take(OwnId id) noexcept {
  owner_ = nullptr;
  id_ = std::move(id);
}

void QueuePairEnds::add(std::unique_ptr<QueuePairEnd> end) noexcept {
  // The device tells of the last receive only of a queue pair that has failed.
  ibv_qp_attr failed{};
  failed.qp_state = IBV_QPS_ERR;
  library().modify_qp(end->id_->qp, &failed, IBV_QP_STATE);
  end->until_ = watch_() + kWait;
  end->next_ = std::move(first_);
  first_ = std::move(end);
}

template <class Which>
void QueuePairEnds::destroy(Which which) noexcept {
  for (std::unique_ptr<QueuePairEnd>* at = &first_; *at;)
    if (which(**at))
      *at = std::move((*at)->next_);
    else
      at = &(*at)->next_;
}

QueuePairEnds::~QueuePairEnds() {
  destroy([](const QueuePairEnd&) { return true; });
}

void QueuePairEnds::drained() noexcept {
  destroy([](const QueuePairEnd& end) { return end.told_; });
}

bool QueuePairEnds::tick(std::chrono::nanoseconds now) noexcept {
  for (QueuePairEnd* end = first_.get(); end; end = end->next_.get()) end->told_ |= now >= end->until_;
  return !empty();
}

void QueuePairEnds::give_up() noexcept {
  for (QueuePairEnd* end = first_.get(); end; end = end->next_.get()) end->told_ = true;
}

}  // namespace fab::verbs
