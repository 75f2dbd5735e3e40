#include "simulation/client.h"

#include <algorithm>

namespace fab::sim {

void Client::turn() {
  model_.read_notices(node_);
  model_.check_deadlines(node_);
  if (resting_) return keep_receiving();
  if (node_.story.now >= next_) {
    for (std::uint64_t count = 1 + node_.story.random.below(4); count != 0; --count) act();
    next_ = node_.story.now + node_.story.random.any_span(pause_);
  }
  node_.wake(next_);
}

void Client::act() {
  Random& random = node_.story.random;
  const std::uint64_t what = random.below(26);
  if (what >= 24) return random.one_in(2) ? claim() : end_claim();
  if (what < 5) return receive();
  const auto peer = static_cast<unsigned>(random.below(node_.settings.nodes));
  if (peer == node_.number || model_.open_from({node_.number, node_.incarnation}) >= kMostOpen) return;
  unsigned life = 0;
  Path* const path = node_.path_to(peer, life);
  if (!path) return;
  const Life to{peer, life};
  Home* const home = model_.home_of(to);
  // A message names nothing that the next process of that name would not know, and may come to it.
  if (what < 11) return node_.settings.same_names ? sum(*path, to, what >= 9) : send(*path, to, what >= 9);
  if (what < 15) return sum(*path, to, what < 14);
  if (!home) return;
  if (what < 17) return put(*path, to, *home, Kind::put);
  if (what == 17) return put(*path, to, *home, random.one_in(2) ? Kind::notified_put : Kind::durable_put);
  if (what == 18) return random.one_in(8) ? put(*path, to, *home, Kind::striped) : get(*path, to, *home);
  if (what < 21) return get(*path, to, *home);
  if (what == 21) return swap(*path, to, *home);
  if (what == 22) return to_passing(*path, to, *home);
  refused(*path, to, *home);
}

// Two operations may have bytes of the same place, one time in a million.
std::vector<std::byte> Client::some_bytes(std::size_t size) {
  constexpr std::size_t kPlaces = 1u << 20;
  static const std::vector<std::byte> noise = [] {
    Random random(0);
    std::vector<std::byte> bytes(2 * kPlaces);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    return bytes;
  }();
  const auto first = noise.begin() + static_cast<std::ptrdiff_t>(node_.story.random.below(kPlaces));
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

Task& Client::new_write(Kind kind, const Life& to, std::size_t size) {
  Task& task = model_.new_task(kind, node_, to);
  task.content = some_bytes(size);
  task.local = std::make_unique<Ground>(size);
  std::ranges::copy(task.content, task.local->data());
  task.transfer.local = task.local->data();
  task.transfer.length = size;
  return task;
}

// The local memory of some operations lies in pieces.
void Client::scatter_some(Task& task) {
  Random& random = node_.story.random;
  if (task.transfer.length < 2 || !random.one_in(4)) return;
  task.pieces = cut_up(random, task.local->piece());
  if (!task.content.empty()) scatter(task.content, task.pieces);
  task.transfer.local_pieces = task.pieces.data();
  task.transfer.piece_count = static_cast<std::uint16_t>(task.pieces.size());
  ++node_.story.tally.scattered;
}

Cell* Client::idle_cell(Field& field) {
  Cell& cell = node_.story.random.one_of(field.cells);
  return cell.busy ? nullptr : &cell;
}

void Client::put(Path& path, const Life& to, Home& home, Kind kind) {
  Random& random = node_.story.random;
  Share& share = home.share_for(node_.story, node_.number, node_.incarnation);
  Field& field = kind == Kind::striped                           ? home.large_of(node_.story, share)
                 : kind == Kind::durable_put || random.one_in(4) ? share.medium
                                                                 : share.small;
  Cell* const cell = idle_cell(field);
  if (!cell) return;
  const std::size_t least = kind == Kind::striped ? 263'000 : 1;
  const std::size_t length = random.between(least, cell->size());
  Task& task = new_write(kind, to, length);
  task.field = &field;
  task.cell = cell;
  task.at = random.below(cell->size() - length + 1);
  task.transfer.op = OpCode::write;
  task.transfer.key = field.key;
  task.transfer.remote = cell->offset + task.at;
  if (kind == Kind::notified_put) {
    task.transfer.flags = transfer_flag::kRemoteData;
    task.transfer.data = task.id;
  }
  if (kind == Kind::durable_put || (kind == Kind::striped && random.one_in(4)))
    task.transfer.delivery = Delivery::commit;
  scatter_some(task);
  model_.post(task, path, node_);
}

void Client::get(Path& path, const Life& to, Home& home) {
  Random& random = node_.story.random;
  Share& share = home.share_for(node_.story, node_.number, node_.incarnation);
  Field& field = share.large && random.one_in(4) ? *share.large
                 : random.one_in(4)              ? share.medium
                                                 : share.small;
  Cell* const cell = idle_cell(field);
  if (!cell) return;
  Task& task = model_.new_task(Kind::get, node_, to);
  const std::size_t length = random.between(&field == share.large.get() ? 263'000 : 1, cell->size());
  task.field = &field;
  task.cell = cell;
  task.at = random.below(cell->size() - length + 1);
  task.local = std::make_unique<Ground>(length);
  task.transfer.op = OpCode::read;
  task.transfer.key = field.key;
  task.transfer.remote = cell->offset + task.at;
  task.transfer.local = task.local->data();
  task.transfer.length = length;
  scatter_some(task);
  model_.post(task, path, node_);
}

void Client::sum(Path& path, const Life& to, bool fetches) {
  Home* const home = model_.home_of(to);
  if (!home) return;
  Task& task = new_write(fetches ? Kind::fetch : Kind::add, to, sizeof(std::int64_t));
  task.element = node_.story.random.below(Home::kElements - 1);
  task.content.assign(sizeof(std::int64_t), std::byte{0});
  task.content[0] = std::byte{1};
  std::ranges::copy(task.content, task.local->data());
  task.transfer.op = fetches ? OpCode::fetch_atomic : OpCode::atomic;
  task.transfer.atomic = AtomicOp::sum;
  task.transfer.type = DataType::i64;
  task.transfer.key = home->numbers_key;
  task.transfer.remote = task.element * sizeof(std::int64_t);
  if (fetches) {
    task.result = std::make_unique<Ground>(sizeof(std::int64_t));
    task.transfer.result = task.result->data();
  }
  model_.post(task, path, node_);
}

void Client::swap(Path& path, const Life& to, Home& home) {
  Task& task = new_write(Kind::compare, to, sizeof(std::int64_t));
  task.swap = static_cast<std::int64_t>(task.id);
  std::memcpy(task.local->data(), &task.swap, sizeof task.swap);
  const std::int64_t expected = model_.guess(to);
  std::memcpy(task.content.data(), &expected, sizeof expected);
  task.compare = std::make_unique<Ground>(sizeof expected);
  std::memcpy(task.compare->data(), &expected, sizeof expected);
  task.result = std::make_unique<Ground>(sizeof expected);
  task.transfer.op = OpCode::compare_atomic;
  task.transfer.atomic = AtomicOp::cswap;
  task.transfer.type = DataType::i64;
  task.transfer.key = home.numbers_key;
  task.transfer.remote = (Home::kElements - 1) * sizeof expected;
  task.transfer.result = task.result->data();
  task.transfer.compare = task.compare->data();
  model_.post(task, path, node_);
}

void Client::send(Path& path, const Life& to, bool announced) {
  Random& random = node_.story.random;
  const std::size_t length = announced ? random.between(kMaxMessage + 1, kLongest)
                                       : random.below(std::size_t{1} << random.between(1, 14));
  Task& task = new_write(announced ? Kind::announced : Kind::message, to, length);
  task.transfer.op = OpCode::send;
  task.transfer.key = random.below(3);
  task.transfer.flags = transfer_flag::kTagged | transfer_flag::kRemoteData;
  if (random.one_in(8)) {
    task.unordered = true;
    task.transfer.flags |= transfer_flag::kUnordered;
  }
  task.transfer.data = task.id;
  if (random.one_in(8)) {
    task.injected = true;
    task.transfer.delivery = Delivery::inject;
  }
  scatter_some(task);
  model_.post(task, path, node_);
}

// A put to a region that is closed at some time.
void Client::to_passing(Path& path, const Life& to, Home& home) {
  Random& random = node_.story.random;
  Share& share = home.share_for(node_.story, node_.number, node_.incarnation);
  Task& task =
      new_write(share.closed ? Kind::refused : Kind::put, to, random.between(1, share.passing.size()));
  task.transfer.op = OpCode::write;
  task.transfer.key = share.passing_key;
  if (share.closed)
    task.expected = Errc::key_rejected;
  else
    task.may_be_closed = true;
  scatter_some(task);
  model_.post(task, path, node_);
  if (share.closed || !random.one_in(6)) return;
  node_.story.in(random.any_span(milliseconds(20)), [&model = model_, &home, &share] {
    if (home.node) home.node->call([&model, &home, &share] { model.close_passing(home, share); });
  });
}

void Client::refused(Path& path, const Life& to, Home& home) {
  Random& random = node_.story.random;
  Share& share = home.share_for(node_.story, node_.number, node_.incarnation);
  const std::size_t size = random.one_in(8) ? random.between(263'000, 280'000) : random.between(1, 2000);
  Task& task = new_write(Kind::refused, to, size);
  task.transfer.op = random.one_in(2) ? OpCode::write : OpCode::read;
  switch (random.below(5)) {
    case 0:
      task.transfer.key = random.next() >> 1;
      task.expected = Errc::key_rejected;
      break;
    case 1:
      task.transfer.key = share.small.key;
      task.transfer.remote = share.small.ground.size() - random.below(std::min<std::size_t>(size, 1000));
      task.expected = Errc::bounds;
      break;
    case 2:
      task.transfer.key = home.read_only_key;
      task.transfer.op = OpCode::write;
      task.expected = Errc::access;
      break;
    case 3:  // nothing of this region can be made durable
      task.transfer.key = share.small.key;
      task.transfer.op = OpCode::write;
      task.transfer.length = std::min(size, share.small.ground.size());
      task.transfer.delivery = Delivery::commit;
      task.expected = Errc::invalid;
      break;
    default:
      task.transfer.key = home.write_only_key;
      task.transfer.op = OpCode::read;
      task.expected = Errc::access;
      break;
  }
  model_.post(task, path, node_);
}

void Client::receive() {
  Random& random = node_.story.random;
  const Life here{node_.number, node_.incarnation};
  if (model_.landings_open(here) >= kMostLandings) return random.one_in(4) ? take_back() : void();
  const bool many = random.one_in(6), any = random.one_in(2);
  const std::size_t size = many               ? random.between(1, 3) * kLongest
                           : random.one_in(8) ? random.below(1000)
                                              : kLongest;
  Landing& landing = model_.new_landing(node_, size, many ? random.between(1, 2000) : 0);
  post_receive(landing,
               {.tag = any ? 0 : random.below(3), .ignore = any ? ~std::uint64_t{0} : 0, .tagged = true});
  node_.wake(node_.story.now);
}

void Client::post_receive(Landing& landing, const MatchRule& rule) {
  Random& random = node_.story.random;
  Receive asked{.operation = &landing,
                .local = landing.ground.data(),
                .length = landing.room,
                .least_room = landing.least_room,
                .rule = rule};
  if (landing.room >= 2 && random.one_in(4)) {
    landing.pieces = cut_up(random, landing.ground.piece());
    asked.pieces = landing.pieces.data();
    asked.piece_count = static_cast<std::uint16_t>(landing.pieces.size());
  }
  node_.receives.post(asked);
}

// A receive that was posted before is taken back; it may have been matched.
void Client::take_back() {
  const Life here{node_.number, node_.incarnation};
  for (const auto& landing : model_.landings())
    if (!landing->settled && landing->at == here) {
      const bool taken = node_.receives.cancel(*landing);
      // One for many waits for the messages that it was matched with.
      if (landing->least_room == 0 && taken != landing->settled)
        node_.story.wrong("cancel() says otherwise than the receive");
      return;
    }
}

// A message that waits is hidden from all receives, for later.
void Client::claim() {
  const std::uint64_t claim = node_.receives.claim({.tag = node_.story.random.below(3), .tagged = true});
  if (claim == 0) return;
  model_.claimed(*node_.receives.claimed(claim));
  claims_.push_back(claim);
}

// The oldest one is received now, or nobody wants it. It may have gone with its sender.
void Client::end_claim() {
  if (claims_.empty()) return;
  const std::uint64_t claim = claims_.front();
  claims_.erase(claims_.begin());
  const Message* const message = node_.receives.claimed(claim);
  if (!message) return;
  if (node_.story.random.one_in(3)) {
    model_.discarded(*message);
    if (!node_.receives.discard_claimed(claim)) node_.story.wrong("a claimed message was not there");
    return;
  }
  Landing& landing = model_.new_landing(node_, kLongest);
  if (!node_.receives.receive_claimed(
          claim, {.operation = &landing, .local = landing.ground.data(), .length = landing.room}))
    node_.story.wrong("a claimed message was not there");
}

void Client::keep_receiving() {
  const MatchRule all{.ignore = ~std::uint64_t{0}, .tagged = true};
  while (!claims_.empty()) end_claim();
  while (node_.receives.peek(all)) {
    post_receive(model_.new_landing(node_, kLongest), all);
    if (node_.story.broken()) return;
  }
}

}  // namespace fab::sim
