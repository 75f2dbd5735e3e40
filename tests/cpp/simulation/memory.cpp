#include "simulation/memory.h"

#include <algorithm>
#include <span>

namespace fab::sim {

std::vector<iovec> cut_up(Random& random, iovec whole) {
  std::vector<iovec> pieces{whole};
  for (std::uint64_t cuts = random.between(1, 7); cuts != 0; --cuts) {
    iovec& piece = random.one_of(pieces);
    if (piece.iov_len < 2) continue;
    const std::size_t first = random.between(1, piece.iov_len - 1);
    const iovec rest{static_cast<std::byte*>(piece.iov_base) + first, piece.iov_len - first};
    piece.iov_len = first;
    pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(random.below(pieces.size() + 1)), rest);
  }
  return pieces;
}

void scatter(const std::vector<std::byte>& bytes, const std::vector<iovec>& pieces) noexcept {
  std::size_t at = 0;
  for (const iovec& piece : pieces) {
    if (piece.iov_len != 0) std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
    at += piece.iov_len;
  }
}

std::vector<std::byte> gathered(Ground& ground, const std::vector<iovec>& pieces, std::size_t from,
                                std::size_t length) {
  std::vector<std::byte> bytes;
  bytes.reserve(length);
  const iovec whole = ground.piece();
  for (const iovec& piece : pieces.empty() ? std::span(&whole, 1) : std::span(pieces)) {
    const std::size_t before = std::min(from, piece.iov_len);
    const std::size_t here = std::min(length, piece.iov_len - before);
    const auto* const first = static_cast<const std::byte*>(piece.iov_base) + before;
    bytes.insert(bytes.end(), first, first + here);
    from -= before;
    length -= here;
  }
  return bytes;
}

void Cell::stored(std::size_t at, const std::vector<std::byte>& what) {
  std::ranges::copy(what, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  for (Possible& possible : possible_)
    for (std::size_t i = 0; i < possible.bytes.size(); ++i)
      if (possible.at + i >= at && possible.at + i - at < what.size()) possible.valid[i] = 0;
}

void Cell::maybe_stored(std::size_t at, const std::vector<std::byte>& what) {
  possible_.push_back({at, what, std::vector<char>(what.size(), 1)});
}

bool Cell::may_hold(std::size_t at, const std::byte* what, std::size_t length) const noexcept {
  if (length == 0 || std::memcmp(&bytes_[at], what, length) == 0) return true;
  for (std::size_t i = 0; i < length; ++i)
    if (what[i] != bytes_[at + i] && std::ranges::none_of(possible_, [&](const Possible& possible) {
          const std::size_t here = at + i - possible.at;  // huge if it is before
          return here < possible.bytes.size() && possible.valid[here] && possible.bytes[here] == what[i];
        }))
      return false;
  return true;
}

Home::Home(Story& story, Node& of)
    : node(&of),
      numbers_key(story.random.next() >> 1),
      read_only_key(story.random.next() >> 1),
      write_only_key(story.random.next() >> 1) {
  node->expose(numbers_key, {numbers.piece()}, access::kAll);
  node->expose(read_only_key, {read_only.piece()}, access::kRemoteRead);
  node->expose(write_only_key, {write_only.piece()}, access::kRemoteWrite);
}

Share& Home::share_for(Story& story, unsigned number, unsigned incarnation) {
  auto& place = shares[{number, incarnation}];
  if (place) return *place;
  const auto key = [&] { return story.random.next() >> 1; };
  place = std::make_unique<Share>(Share{.small = {6, 1024, key()}, .medium = {2, 40'000, key()}});
  for (Field* field : {&place->small, &place->medium}) {
    field->region = node->expose(field->key, {field->ground.piece()}, access::kAll, field == &place->medium);
    field->counter = counters++;
    node->regions.bind_counter(field->region, field->counter);
  }
  place->passing_key = key();
  place->passing_region = node->expose(place->passing_key, {place->passing.piece()}, access::kAll);
  return *place;
}

Field& Home::large_of(Story& story, Share& share) {
  if (!share.large) {
    share.large = std::make_unique<Field>(1, 290'000, story.random.next() >> 1);
    share.large->region = node->expose(share.large->key, {share.large->ground.piece()}, access::kAll, true);
    share.large->counter = counters++;
    node->regions.bind_counter(share.large->region, share.large->counter);
  }
  return *share.large;
}

}  // namespace fab::sim
