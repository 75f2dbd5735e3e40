#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "base/deadline.h"
#include "fabric/types/error.h"
#include "providers/verbs/endpoint.h"
#include "providers/verbs/served.h"

// The part of VerbsEndpoint that reads what happens to connections, answers calls, and calls again.
namespace fab::verbs {
namespace {

constexpr std::size_t kMostServed = 65536, kMostOfOneStranger = kMostServed / 4 * 3;
// How much of a slice a queue pair spends: making it takes as long as moving so many bytes.
constexpr std::uint64_t kCostOfQueuePair = 512 * 1024;
// A call is turned away after so long, or after a part of the time that its caller has.
constexpr std::chrono::seconds kLongestWait(1);
constexpr int kWaitsPerHandshake = 4;
// Callers of one source in their handshake: their patience for the first answer is short (see
// VerbsStream::kAnswerTime), so few at once are answered soon, and the others wait before they are connected.
constexpr std::size_t kMostOfOneOverIwarp = 16;

std::size_t most_descriptors() noexcept {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
}

}  // namespace

void VerbsEndpoint::on_cm(bool all) noexcept {
  rdma_cm_event* event = nullptr;
  while ((all || !services_.slice.spent()) && library().get_cm_event(events_.get(), &event) == 0) {
    const rdma_cm_event told = *event;
    // A copy of the private data, which goes when the event is acknowledged. Its length has 8 bits.
    char said[256];
    std::size_t length = 0;
    const bool says = told.event == RDMA_CM_EVENT_CONNECT_REQUEST || told.event == RDMA_CM_EVENT_REJECTED;
    if (says && told.param.conn.private_data)
      length = std::string_view(static_cast<const char*>(told.param.conn.private_data),
                                told.param.conn.private_data_len)
                   .copy(said, sizeof said);
    library().ack_cm_event(event);
    services_.slice.spend(0);
    on_event(told, {said, length});
  }
  calls_wait();
}

void VerbsEndpoint::on_event(const rdma_cm_event& event, std::string_view said) noexcept {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return on_call(OwnId(event.id), event.param.conn, said);
  auto* const connection = static_cast<Connection*>(event.id->context);
  if (!connection) return;
  const std::uint32_t number = connection->work_number();
  // Messages from before the end are still to be read. That may destroy the connection.
  if (event.event == RDMA_CM_EVENT_DISCONNECTED)
    while (completions_.poll() != 0) {
    }
  if (completions_.owners().find(number)) connection->on_event(event, said);
}

// Making a queue pair and its buffers takes long, so a call waits for its turn.
void VerbsEndpoint::on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept try {
  id->context = nullptr;
  const auto data = PrivateData::decode(said);
  WaitingCall call{
      .id = std::move(id), .asked = asked, .data = data.value_or(PrivateData{}), .since = Clock::now()};
  if (broken_ || !data || data->to != identity_.id) return Connection::refuse(*call.id, Refusal::Why::never);
  call.source = source_of({&call.id->route.addr.dst_addr, sizeof call.id->route.addr.dst_storage});
  call.asked.private_data = nullptr;
  auto& queue = data->purpose == PrivateData::Purpose::memory ? memory_calls_ : stream_calls_;
  if (const auto no_room = queue.add(std::move(call))) Connection::refuse(*no_room->id, Refusal::Why::busy);
  watch();
} catch (const std::exception&) {
  return;  // memory ran out; destroying the id rejects the caller
}

void VerbsEndpoint::calls_wait() noexcept {
  const bool some = !to_connect_.empty() || !memory_calls_.empty() || !stream_calls_.empty();
  if (some && !std::exchange(calls_told_, true)) ::eventfd_write(calls_.get(), 1);
}

// Answers calls and goes on with own ones: as many as the slice allows, and one at least. The poller comes
// back for the rest, after all else that it has to tell.
void VerbsEndpoint::take_calls() noexcept try {
  bool moved = false;
  const Bounds bounds = this->bounds();
  const auto anybody = [](const std::string&) { return true; };
  const auto if_room = [&](const std::string& source) { return callers_.may_come(source, bounds); };
  const auto done = [&] {
    services_.slice.spend(kCostOfQueuePair);
    moved = true;
  };
  // One of each kind in a round, so that none of them delays the others.
  for (bool more = true; more && (!moved || !services_.slice.spent());) {
    more = false;
    if (!to_connect_.empty()) {
      to_connect_.pop_front().go_on();
      done();
      more = true;
    }
    if (auto call = memory_calls_.take(anybody)) {
      answer_for_memory(std::move(*call));
      done();
      more = true;
    }
    if (auto call = stream_calls_.take(if_room)) {
      answer_for_stream(std::move(*call));
      done();
      more = true;
    }
  }
  if (moved) return;
  // None is left, or there is no room. Whoever leaves makes some, and calls_wait().
  eventfd_t told;
  ::eventfd_read(calls_.get(), &told);
  calls_told_ = false;
} catch (const std::exception&) {
  return;  // memory ran out; the calls wait for another turn
}

void VerbsEndpoint::answer_for_memory(WaitingCall call) noexcept try {
  const auto found = std::ranges::find_if(served_, [&](const auto& served) {
    return served->stream.open() && served->stream.token() == call.data.token;
  });
  if (found == served_.end()) return Connection::refuse(*call.id, Refusal::Why::never);
  (*found)->serve_memory(std::move(call.id), call.asked);
} catch (const std::exception&) {
  return;  // memory ran out; destroying the id rejects the caller
}

void VerbsEndpoint::answer_for_stream(WaitingCall call) noexcept try {
  auto served = std::make_shared<Served>(*this);
  served_.push_back(served);
  callers_.add(*served, std::move(call.source));
  if (const Errc error = served->stream.answer(std::move(call.id), call.asked); error != Errc::ok)
    served->stream.fail(error);
} catch (const std::exception&) {
  return;  // memory ran out; destroying the id rejects the caller
}

// Whoever has waited for long is told that this side lives and is busy, before it takes it for dead.
void VerbsEndpoint::turn_away() noexcept {
  const auto patience = std::min<std::chrono::nanoseconds>(
      kLongestWait, Liveness::handshake_time(deadlines()) / kWaitsPerHandshake);
  for (CallQueue* const queue : {&memory_calls_, &stream_calls_})
    while (const auto call = queue->take_older(Clock::now() - patience))
      Connection::refuse(*call->id, Refusal::Why::busy);
}

Bounds VerbsEndpoint::bounds() const noexcept {
  const bool keyed = !services_.keys.front().secret.empty();
  // Over rdma_cm calls and streams need no descriptors. By exchange a guest has two, of its stream and of its
  // memory connection, and as many callers as have their handshake may be at the door, and in each queue.
  if (shared_.by_exchange) return Bounds::of(most_descriptors() / 3, keyed);
  Bounds bounds = Bounds::of(INT_MAX, keyed);
  if (shared_.device.iwarp()) bounds.callers_of_one = kMostOfOneOverIwarp;
  bounds.guests = kMostServed;
  bounds.guests_of_one = keyed ? kMostServed : kMostOfOneStranger;
  return bounds;
}

// The handshake is done, and the caller becomes a guest.
void VerbsEndpoint::welcome(Served& served) noexcept try {
  const std::string source = served.source();
  callers_.remove(served);
  calls_wait();
  served.stands = true;
  if (!guests_.make_room(source, served.proven(), bounds())) {
    shared_.services.security.note(SecurityEvent::limit, source,
                                   "too many streams, and all of them are used");
    return served.stream.fail(Errc::peer_lost);
  }
  guests_.add(served, source);
} catch (const std::bad_alloc&) {
  served.stream.fail(Errc::no_memory);
}

// Of a caller, where it has called from counts, and not where it says that it listens.
void VerbsEndpoint::note(SecurityEvent event, const VerbsStream& stream, const char* what) const noexcept
    try {
  const auto served =
      std::ranges::find_if(served_, [&](const auto& each) { return &each->stream == &stream; });
  const std::string source =
      served != served_.end() ? (*served)->source() : stream.where().addresses.front().host();
  shared_.services.security.note(event, source, what);
} catch (const std::bad_alloc&) {
  return;
}

void VerbsEndpoint::supersede(const VerbsStream& by) noexcept {
  visit_served([&](VerbsStream& stream) {
    if (&stream != &by && stream.open() && stream.proven() && stream.where().id == by.where().id &&
        stream.key() == by.key())
      stream.fail(Errc::peer_lost);
  });
}

void VerbsEndpoint::release(Served& served) noexcept {
  served.memory.reset();
  (served.stands ? guests_ : callers_).remove(served);
  calls_wait();
  decltype(turns_)::erase(served.stream);
  const auto found = std::ranges::find(served_, &served, [](const auto& owned) { return owned.get(); });
  if (found == served_.end()) return;
  destroy_later(std::move(*found));
  served_.erase(found);
}

}  // namespace fab::verbs
