#include <algorithm>
#include <span>
#include <utility>

#include "fabric/session/messenger.h"

// How the bytes of announced messages come to the receiver (rendezvous): they are read from the sender's
// memory where the link can do that, and otherwise asked for through the stream with a pull.
namespace fab {

// The caller has made room in fetches_. `where` says where the bytes lie at the sender; in exchange it gets
// the memory of an old list.
void Messenger::begin_fetch(const Matched& matched, std::uint64_t id, std::vector<iovec>& where) noexcept {
  end_.extension.fetching(id, matched);
  Fetch& fetch = fetches_.push_back();
  fetch.pull = {id, matched};
  fetch.done = 0;
  fetch.where.swap(where);
  fetch_bytes_ += matched.room;
}

void Messenger::fetch(const Message& message, const Matched& matched) noexcept {
  std::vector<iovec> where;
  try {
    fetches_.reserve(fetches_.size() + 1);
    where = message.where;
  } catch (const std::bad_alloc&) {
    end_fetch({message.id, matched}, Errc::no_memory);
    tell_output();
    return;
  }
  begin_fetch(matched, message.id, where);
  run_fetches();
}

void Messenger::run_fetches() noexcept {
  if (fetches_.empty()) return;
  while (!fetches_.empty() && !slice_spent()) read_fetches();
  if (!fetches_.empty() && end_.services.on_more) end_.services.on_more();
  tell_output();
}

// Reads as many of fetches_, from the front, as the slice holds; of the last of these maybe only a part.
void Messenger::read_fetches() noexcept {
  MemoryReader::Read reads[kMostFetches];
  MemoryReader::Read* read_of[kMostFetches] = {};
  std::size_t readable = 0, begun = 0;
  std::uint64_t left = end_.services.slice ? end_.services.slice->left() : ~std::uint64_t{0}, bytes = 0;
  for (; begun < std::min(fetches_.size(), kMostFetches) && left != 0; ++begun) {
    const Fetch& fetch = fetches_[begun];
    const Matched& matched = fetch.pull.matched;
    if (matched.room == 0 || !end_.services.reader || fetch.where.empty() || !stands(fetch.pull.id)) continue;
    const std::uint64_t length = std::min(matched.room - fetch.done, left);
    read_of[begun] = &reads[readable++];
    *read_of[begun] = {fetch.where, matched.landing, fetch.done, length};
    left -= length;
    bytes += length;
  }
  if (readable) end_.services.reader->read({reads, readable});
  if (end_.services.slice) end_.services.slice->spend(bytes, begun);
  for (std::size_t i = 0; i < begun; ++i) {
    Fetch& fetch = fetches_.front();
    const MemoryReader::Read* const read = read_of[i];
    Errc outcome = fetch.pull.matched.room == 0 ? Errc::ok : Errc::not_supported;
    if (read) {
      outcome = read->outcome;
      fetch.done += read->length;
    }
    if (!stands(fetch.pull.id)) outcome = Errc::peer_lost;
    if (outcome == Errc::ok && read && fetch.done != fetch.pull.matched.room) break;
    const Pull ended = fetch.pull;
    fetches_.drop_front();
    outcome == Errc::not_supported ? pull(ended) : end_fetch(ended, outcome);
  }
  fetch_bytes_ = 0;
}

void Messenger::start_pull(const Pull& pull) {
  if (initiator_.full()) {
    waiting_pulls_.push_back(pull);
    return;
  }
  initiator_.reserve();
  pulls_.reserve(pulls_.size() + 1);
  end_.output.append_header(SessionOutput::Lane::requests,
                            {.type = FrameType::pull, .total = pull.matched.room, .id = pull.id});
  ++end_.services.counts.posted;
  initiator_.await_message(pull.matched);
  pulls_.push_back(pull);
}

// Starts a pull. Without the memory for that the message is lost, and its receive fails.
void Messenger::pull(const Pull& what) noexcept try { start_pull(what); } catch (const std::bad_alloc&) {
  end_fetch(what, Errc::no_memory);
}

void Messenger::pull_ended(Errc error) noexcept {
  const Pull pull = pulls_.front();
  pulls_.pop_front();
  end_fetch(pull, error);
}

void Messenger::pull_waiting() noexcept {
  while (!waiting_pulls_.empty() && !initiator_.full()) {
    const Pull next = waiting_pulls_.front();
    waiting_pulls_.pop_front();
    pull(next);
  }
}

bool Messenger::stands(std::uint64_t id) const noexcept {
  return !end_.services.ledger || end_.services.ledger->stands(id);
}

void Messenger::end_fetch(const Pull& pull, Errc error) noexcept {
  if (error == Errc::ok && end_.services.ledger && !end_.services.ledger->take(pull.id))
    error = Errc::peer_lost;
  if (end_.failing && end_.extension.shares(pull.id)) return;  // another session announces the message again
  end_.extension.done(pull.id, error);
  if (!end_.failing) tell_release(pull.id, error);
  ReceiveQueue::finish(pull.matched, error);
}

void Messenger::resume(std::uint64_t number, const Matched& matched) noexcept {
  if (matched.room == 0)
    end_fetch({number, matched}, Errc::ok);
  else
    pull({number, matched});
}

}  // namespace fab
