#include "providers/verbs/connection/shared_receives.h"

#include <exception>

#include "providers/verbs/connection/connection.h"

namespace fab::verbs {

SharedReceives::SharedReceives(DeviceCompletionQueue& completions, const Device& device,
                               ibv_pd& protection_domain, std::uint32_t slots)
    : slots_(slots),
      memory_(Mapping::anonymous(std::size_t{slots} * kSlotBytes)),
      mr_(library().reg_mr(&protection_domain, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE)) {
  if (!mr_) refuse(device, "access to memory");
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = slots, .max_sge = 1, .srq_limit = 0};
  queue_.reset(library().create_srq(&protection_domain, &wanted));
  if (!queue_ || !completions.take_room_in_all(slots)) refuse(device, "shared receive queue");
  work_number_ = completions.owners().add(*this);
  for (std::uint32_t slot = 0; slot < slots; ++slot)
    if (!post(slot)) refuse(device, "shared receive queue");
}

bool SharedReceives::join(std::uint32_t queue_pair, ConnectionOwner& owner) noexcept try {
  owners_.insert_or_assign(queue_pair, &owner);
  return true;
} catch (const std::exception&) {
  return false;
}

const std::byte* SharedReceives::slot(std::uint32_t number) const noexcept {
  return memory_.data() + std::size_t{number % slots_} * kSlotBytes;
}

void SharedReceives::on_completion(const ibv_wc& completion) noexcept {
  if (const auto found = owners_.find(completion.qp_num); found != owners_.end())
    found->second->on_completion(completion);
  post(Connection::number_of(completion) % slots_);
}

bool SharedReceives::post(std::uint32_t number) noexcept {
  ibv_sge where{.addr = reinterpret_cast<std::uint64_t>(slot(number)),
                .length = static_cast<std::uint32_t>(kSlotBytes),
                .lkey = mr_->lkey};
  ibv_recv_wr request{};
  request.wr_id = Connection::work_id(work_number_, number, true);
  request.sg_list = &where;
  request.num_sge = 1;
  ibv_recv_wr* bad;
  return ibv_post_srq_recv(queue_.get(), &request, &bad) == 0;
}

}  // namespace fab::verbs
