#include "providers/shm/shm_channel.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/fault_guard.h"
#include "base/tsan.h"

namespace fab::shm {
namespace {

constexpr std::size_t kSlice = 1024 * 1024;  // bytes in per move(), so that no channel holds up the others

ChannelHeader& header_of(const Mapping& mapping) noexcept {
  return *reinterpret_cast<ChannelHeader*>(mapping.data());
}

std::span<std::byte> ring_bytes(const Mapping& mapping, bool to_target) noexcept {
  return mapping.bytes().subspan(kRingsOffset + (to_target ? 0 : kRingBytes), kRingBytes);
}

}  // namespace

Channel::Channel(OwnFd file, Mapping mapping, std::shared_ptr<Neighbour> peer, std::uint16_t peer_cell,
                 bool initiator, const Session::Services& services)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      peer_(std::move(peer)),
      peer_cell_(peer_cell),
      out_(initiator ? header_of(mapping_).to_target : header_of(mapping_).to_initiator,
           ring_bytes(mapping_, initiator)),
      in_(initiator ? header_of(mapping_).to_initiator : header_of(mapping_).to_target,
          ring_bytes(mapping_, !initiator)),
      session_(std::make_unique<Session>(services)) {
  peer_->watch();
}

Channel::~Channel() {
  header_of(mapping_).closed.store(1);
  peer_->wake(peer_cell_, work::kLook);
}

std::unique_ptr<Channel> Channel::create(std::shared_ptr<Neighbour> peer, std::uint16_t peer_cell,
                                         const Address& self, std::uint16_t context,
                                         const Session::Services& services) {
  OwnFd file = make_memory_file("pyfab-channel", kChannelBytes);
  Mapping mapping = Mapping::shared(file.get(), 0, kChannelBytes);
  ChannelHeader& header = header_of(mapping);
  header.magic = kChannelMagic;
  header.version = kChannelVersion;
  header.initiator_context = context;
  header.target_cell = peer_cell;
  self.encode().copy(header.initiator, sizeof header.initiator);
  std::memcpy(header.target_domain, peer->address().domain_id, sizeof header.target_domain);
  return std::unique_ptr<Channel>(
      new Channel(std::move(file), std::move(mapping), std::move(peer), peer_cell, true, services));
}

Channel::Offer Channel::open(const AccessSlot& slot, std::uint16_t cell,
                             const std::uint8_t (&domain_id)[16]) {
  const ProcessId claimant{slot.pid.load(), slot.start_time.load()};
  const auto refuse = [&](const char* why) {
    return Error(Errc::protocol, "the channel of process " + std::to_string(claimant.pid) + " " + why);
  };
  const std::string path = "/proc/" + std::to_string(claimant.pid) + "/fd/" +
                           std::to_string(slot.channel_fd.load(std::memory_order_acquire));
  Offer offer;
  offer.file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status;
  if (!offer.file.valid() || ::fstat(offer.file.get(), &status) != 0) throw refuse("is gone");
  const int seals = ::fcntl(offer.file.get(), F_GET_SEALS);
  if (!S_ISREG(status.st_mode) || !std::cmp_equal(status.st_size, kChannelBytes) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0)
    throw refuse("is no channel");
  offer.mapping = Mapping::shared(offer.file.get(), 0, kChannelBytes);
  const ChannelHeader& header = header_of(offer.mapping);
  if (header.magic != kChannelMagic || header.version != kChannelVersion) throw refuse("has another layout");
  const auto initiator = Address::decode(std::string(header.initiator, sizeof header.initiator));
  if (!initiator || initiator->process != claimant) throw refuse("names another process");
  if (header.target_cell != cell || std::memcmp(header.target_domain, domain_id, sizeof domain_id) != 0)
    throw refuse("is for another context");
  offer.initiator = *initiator;
  offer.initiator_context = header.initiator_context;
  return offer;
}

std::unique_ptr<Channel> Channel::accept(Offer offer, std::shared_ptr<Neighbour> peer,
                                         const Session::Services& services) {
  const std::uint16_t cell = offer.initiator.cell;
  return std::unique_ptr<Channel>(
      new Channel(std::move(offer.file), std::move(offer.mapping), std::move(peer), cell, false, services));
}

bool Channel::take_in() noexcept {
  const bool closed = header_of(mapping_).closed.load(std::memory_order_acquire) != 0;
  bool tell = false;
  std::size_t taken = 0;
  pending_ = false;
  while (error_ == Errc::ok && in_.readable()) {
    if (taken >= kSlice) {
      pending_ = true;
      break;
    }
    tsan_acquire();
    iovec places[2];
    const std::size_t count = session_->input(places);
    std::size_t got = 0;
    if (!guarded([&] { got = in_.read(places, count); })) {
      if (session_->input_fault()) continue;
      error_ = Errc::protocol;
      break;
    }
    taken += got;
    error_ = session_->received(got);
    if (in_.writer_waits()) tell = true;
  }
  if (in_.broken()) error_ = Errc::protocol;
  if (closed && !pending_ && error_ == Errc::ok) error_ = Errc::peer_lost;
  if (taken && error_ == Errc::ok) session_->end_turn();
  if (tell) peer_->wake(peer_cell_, work::kLook);
  received_ += taken;
  return taken != 0;
}

bool Channel::send_out() noexcept {
  constexpr std::size_t kPieces = 64;
  bool sent = false;
  iovec pieces[kPieces];
  std::size_t most = kPieces;
  while (const std::size_t count = session_->output(pieces, most)) {
    tsan_release();
    std::size_t done = 0;
    if (!guarded([&] { done = out_.write(pieces, count); })) {
      // One piece at a time, to learn whose memory it is that is not there.
      if (std::exchange(most, 1) == 1 && !session_->output_fault()) {
        error_ = Errc::protocol;
        break;
      }
    } else if (done) {
      session_->sent(done);
      sent = true;
    } else if (out_.broken() || !out_.wait_for_room()) {
      break;
    }
  }
  if (out_.broken()) error_ = Errc::protocol;
  if (sent) peer_->wake(peer_cell_, work::kLook);
  return sent;
}

bool Channel::move() noexcept {
  const bool in = take_in();
  const bool out = error_ == Errc::ok && send_out();
  return in || out;
}

void Channel::flush() noexcept {
  if (error_ == Errc::ok) send_out();
}

}  // namespace fab::shm
