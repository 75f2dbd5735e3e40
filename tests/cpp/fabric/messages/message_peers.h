#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/messages/receive_queue.h"

// Peers, what they send, and who receives it, for tests of the queue of receives.
namespace fab {

// A peer: in the address vector, or not.
struct Peer {
  Part part;
  std::shared_ptr<Sender> sender;
  Peer(const AddressVector& peers, int number, const AuthKey& key = kNoAuthKey,
       LinkCounters* counters = nullptr)
      : part{"test.0", 0, "peer " + std::to_string(number)},
        sender(std::make_shared<Sender>(peers, std::vector<Part>{part}, key, counters)) {}
  std::string name() const { return Name{{part}}.encode(); }
};

// Where messages of the tests come from; announced ones are filled with their id.
class Origin final : public MessageOrigin {
 public:
  explicit Origin(ReceiveQueue& queue) : queue_(queue) {}
  ~Origin() { queue_.leave(*this); }

  // As a session does it.
  void arrive(const MessageHead& head, Peer& from, const std::string& bytes) {
    buffered += bytes.size() + kMessageOverhead;
    if (Matched matched{.head = head}; queue_.match(matched, *from.sender)) {
      store_message(matched, reinterpret_cast<const std::byte*>(bytes.data()));
      consumed(bytes.size() + kMessageOverhead);
      return ReceiveQueue::finish(matched, Errc::ok);
    }
    auto message = std::make_unique<Message>();
    message->head = head;
    message->sender = from.sender;
    message->comes_from(this);
    message->bytes = std::make_unique<std::byte[]>(bytes.size());
    std::memcpy(message->bytes.get(), bytes.data(), bytes.size());
    queue_.keep(std::move(message));
  }
  void announce(const MessageHead& head, Peer& from, std::uint64_t id) {
    auto message = std::make_unique<Message>();
    message->head = head;
    message->sender = from.sender;
    message->comes_from(this);
    message->announced = true;
    message->id = id;
    if (Matched matched{.head = head}; queue_.match(matched, *from.sender)) return fetch(*message, matched);
    queue_.keep(std::move(message));
  }
  void fetch(const Message& message, const Matched& matched) noexcept override {
    const std::vector<std::byte> bytes(matched.room, static_cast<std::byte>(message.id));
    store_message(matched, bytes.data());
    released.push_back(message.id);
    ReceiveQueue::finish(matched, Errc::ok);
  }
  void release(const Message& message) noexcept override { released.push_back(message.id); }
  void consumed(std::uint64_t bytes) noexcept override { buffered -= bytes; }

  std::uint64_t buffered = 0;
  std::vector<std::uint64_t> released;

 private:
  ReceiveQueue& queue_;
};

struct Posted {
  explicit Posted(const MatchRule& rule, std::size_t size = 16, std::uint64_t least_room = 0,
                  CompletionQueue* completions = nullptr, std::uint64_t context = 5)
      : bytes(size, '.') {
    operation.begin({.context = context,
                     .flags = completion_flag::kMessage | completion_flag::kRecv,
                     .queue = completions});
    receive.operation = &operation;
    receive.local = reinterpret_cast<std::byte*>(bytes.data());
    receive.length = size;
    receive.rule = rule;
    receive.least_room = least_room;
  }
  bool done() const { return operation.done(); }
  const Completion& completion() const { return operation.completion(); }
  std::string bytes;
  Operation operation;
  Receive receive;
};

inline MatchRule tagged(std::uint64_t tag, std::uint64_t ignore = 0, PeerId source = kNoPeer,
                        std::uint32_t group = 0) {
  return {.tag = tag, .ignore = ignore, .source = source, .group = group, .tagged = true};
}

inline MessageHead head(std::uint64_t tag, std::uint64_t length = 2, std::uint32_t group = 0) {
  return {.tag = tag, .length = length, .group = group, .tagged = true};
}

}  // namespace fab
