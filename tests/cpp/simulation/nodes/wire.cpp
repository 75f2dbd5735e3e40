#include "simulation/nodes/wire.h"

#include <algorithm>
#include <cstring>

namespace fab::sim {

Wire::Wire(Story& story, Road& road, Wake wake)
    : story_(story), road_(road), wake_(std::move(wake)), room_(std::size_t{4096} << story.random.below(8)) {}

std::size_t Wire::send(int side, std::span<const iovec> pieces) {
  Flight& flight = flights_[side];
  if (flight.closed || flights_[1 - side].closed || flight.bytes >= room_) return 0;
  std::size_t offered = 0;
  for (const iovec& piece : pieces) offered += piece.iov_len;
  std::size_t most = std::min(offered, room_ - flight.bytes);
  if (most != 0 && story_.random.one_in(4)) most = story_.random.between(1, most);
  if (most == 0) return 0;
  Piece sent;
  sent.bytes.reserve(most);
  for (const iovec& piece : pieces)
    sent.bytes.append(static_cast<const char*>(piece.iov_base),
                      std::min(piece.iov_len, most - sent.bytes.size()));
  const double taken = static_cast<double>(most) / road_.rate;
  flight.free_at = std::max(flight.free_at, story_.now) + seconds(taken);
  sent.arrival = flight.free_at + road_.latency;
  if (!flight.pieces.empty()) sent.arrival = std::max(sent.arrival, flight.pieces.back().arrival);
  wake_(1 - side, sent.arrival);
  flight.bytes += most;
  story_.tally.bytes += most;
  flight.pieces.push_back(std::move(sent));
  return most;
}

std::size_t Wire::receive(int side, std::span<const iovec> pieces, std::size_t most) {
  Flight& flight = flights_[1 - side];
  std::size_t got = 0;
  if (road_.silent) return 0;
  for (const iovec& into : pieces) {
    std::size_t filled = 0;
    while (filled < into.iov_len && got < most && !flight.pieces.empty() &&
           flight.pieces.front().arrival <= story_.now) {
      Piece& piece = flight.pieces.front();
      const std::size_t bytes =
          std::min({piece.bytes.size() - piece.taken, into.iov_len - filled, most - got});
      std::memcpy(static_cast<char*>(into.iov_base) + filled, piece.bytes.data() + piece.taken, bytes);
      piece.taken += bytes;
      filled += bytes;
      got += bytes;
      if (piece.taken == piece.bytes.size()) flight.pieces.pop_front();
    }
    if (filled < into.iov_len) break;
  }
  if (got != 0 && flight.bytes >= room_) wake_(1 - side, story_.now + road_.latency);  // there is room again
  flight.bytes -= got;
  return got;
}

bool Wire::ended(int side) const noexcept {
  const Flight& flight = flights_[1 - side];
  return !road_.silent && flight.closed && flight.pieces.empty() && flight.end_at <= story_.now;
}

// Some of the last bytes are lost, none of the first.
void Wire::end(int from) {
  Flight& flight = flights_[from];
  if (flight.closed) return;
  flight.closed = true;
  std::size_t arrives = story_.random.one_in(2) ? flight.bytes : story_.random.below(flight.bytes + 1);
  for (std::size_t i = 0; i < flight.pieces.size(); ++i) {
    Piece& piece = flight.pieces[i];
    const std::size_t left = piece.bytes.size() - piece.taken;
    if (left <= arrives) {
      arrives -= left;
      continue;
    }
    piece.bytes.resize(piece.taken + arrives);
    flight.pieces.resize(i + (arrives != 0));
    break;
  }
  flight.bytes = 0;
  for (const Piece& piece : flight.pieces) flight.bytes += piece.bytes.size() - piece.taken;
  flight.end_at = (flight.pieces.empty() ? story_.now : flight.pieces.back().arrival) + road_.latency;
  wake_(1 - from, flight.end_at);
}

void Wire::close(int side) {
  end(side);
  flights_[1 - side].pieces.clear();
  flights_[1 - side].bytes = 0;
}

void Wire::cut() {
  end(0);
  end(1);
}

void Wire::heal() {
  wake_(0, story_.now);
  wake_(1, story_.now);
}

}  // namespace fab::sim
