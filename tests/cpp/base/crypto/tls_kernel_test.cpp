#include "base/crypto/tls_kernel.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto/libssl_caller.h"
#include "base/crypto/tls.h"
#include "base/fd.h"
#include "base/network/tcp_socket.h"

// Where the kernel has no TLS that can renew keys, these tests say so and pass; PYFAB_TEST_KERNEL_TLS=1 tells
// that it has.

using namespace fab;

namespace {

bool sealed_by_kernel() {
  const bool can = kernel_seals();
  if (!can) {
    MESSAGE("this kernel has no TLS that can renew keys");
    CHECK(std::getenv("PYFAB_TEST_KERNEL_TLS") == nullptr);
  }
  return can;
}

struct LoopbackPair {
  LoopbackPair() {
    const OwnFd listens = listen_tcp(parse_socket_address("127.0.0.1", 0));
    caller = connect_tcp(local_address(listens.get()));
    pollfd calls{listens.get(), POLLIN, 0};
    REQUIRE(::poll(&calls, 1, 5000) == 1);
    called = OwnFd(check_call(::accept4(listens.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept4"));
    REQUIRE(::fcntl(caller.get(), F_SETFL, 0) == 0);
  }
  OwnFd caller, called;
};

bool comes(int socket) {
  pollfd watched{socket, POLLIN, 0};
  return ::poll(&watched, 1, 5000) == 1;
}

ssize_t send_text(KernelRecords& records, const std::string& text) {
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  return records.send({&piece, 1});
}

// What comes until `count` bytes are there, or the error that ends it.
std::string hear_kernel(KernelRecords& records, int socket, std::size_t count, int* error = nullptr) {
  std::string all(count, '\0');
  std::size_t done = 0;
  while (done < count) {
    const iovec piece{all.data() + done, count - done};
    const ssize_t got = records.receive({&piece, 1});
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0 || errno != EAGAIN) {
      if (error) *error = got == 0 ? 0 : errno;
      break;
    } else if (!comes(socket)) {
      break;
    }
  }
  all.resize(done);
  return all;
}

Digest secret_of(char letter) {
  Digest secret;
  secret.fill(static_cast<std::uint8_t>(letter));
  return secret;
}

// The kernel at one end, and at the other one records that the test makes.
struct ByHand : LoopbackPair {
  ByHand() : records(KernelRecords::begin(called.get(), secret_of('a'), secret_of('b'))) {
    REQUIRE(records != nullptr);
  }
  void say(RecordType type, std::span<const std::byte> content) {
    std::vector<std::byte> record(content.size() + kRecordOverhead);
    std::ranges::copy(content, record.begin() + kRecordHeader);
    REQUIRE(key.seal(record.data(), content.size(), type) == record.size());
    send(record);
  }
  void send(std::span<const std::byte> bytes) const {
    REQUIRE(::send(caller.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  void say(const std::string& text) { say(RecordType::data, std::as_bytes(std::span(text))); }
  std::string hear(std::size_t count, int* error = nullptr) const {
    return hear_kernel(*records, called.get(), count, error);
  }
  // The type of the next record that comes from the kernel, and its content.
  std::pair<RecordType, std::string> next() {
    std::vector<std::byte> record(kRecordHeader + kMostSealedInRecord);
    REQUIRE(::recv(caller.get(), record.data(), kRecordHeader, MSG_WAITALL) == kRecordHeader);
    const std::size_t length = length_of_record(record);
    REQUIRE(::recv(caller.get(), record.data() + kRecordHeader, length - kRecordHeader, MSG_WAITALL) ==
            static_cast<ssize_t>(length - kRecordHeader));
    const auto content = theirs.open(record.data(), length);
    REQUIRE(content.has_value());
    return {content->type, {reinterpret_cast<const char*>(record.data() + kRecordHeader), content->length}};
  }

  std::unique_ptr<KernelRecords> records;
  RecordKey key{RecordKey::Use::sealing, secret_of('b')};
  RecordKey theirs{RecordKey::Use::opening, secret_of('a')};
};

// libssl calls, and the kernel has the records of the called side.
struct WithLibssl : LoopbackPair {
  WithLibssl() : caller_end(caller.get()) {
    for (const int end : {caller.get(), called.get()}) REQUIRE(::fcntl(end, F_SETFL, O_NONBLOCK) == 0);
    called_end = Tls::answer(called.get(), {test::kSecretOfCaller}, Tls::Records::in_kernel);
    bool done = false;
    Tls::Step step = Tls::Step::again;
    for (int i = 0; i < 100 && !(done && step == Tls::Step::done); ++i) {
      done = done || caller_end.handshake();
      if (step == Tls::Step::again) step = called_end->handshake();
    }
    REQUIRE(done);
    REQUIRE(step == Tls::Step::done);
    REQUIRE(called_end->kernel() != nullptr);
    REQUIRE(::fcntl(caller.get(), F_SETFL, 0) == 0);
  }
  KernelRecords& records() const { return *called_end->kernel(); }
  void exchange(const std::string& text) {
    caller_end.say(text);
    const bool heard = hear_kernel(records(), called.get(), text.size()) == text;
    CHECK(heard);
    REQUIRE(send_text(records(), text) == static_cast<ssize_t>(text.size()));
    const bool answered = caller_end.hear(text.size()) == text;
    CHECK(answered);
  }
  test::LibsslCaller caller_end;
  std::unique_ptr<Tls> called_end;
};

}  // namespace

TEST_CASE("libssl understands what the kernel seals, and the other way round, with renewed keys") {
  if (!sealed_by_kernel()) return;
  WithLibssl ends;
  for (const std::size_t size : {1, 8, 1000, 16384, 16385, 150000}) ends.exchange(std::string(size, 'x'));
  for (const bool both : {false, true, true, false}) {
    ends.caller_end.renew_key(both);
    ends.exchange("text");
    ends.exchange(std::string(40000, 'y'));
  }
  ends.caller_end.leave();
  int error = -1;
  CHECK(ends.records().send({}) == 0);
  CHECK(hear_kernel(ends.records(), ends.called.get(), 1, &error).empty());
  CHECK(error == 0);
}

TEST_CASE("the kernel and this process at the two ends of a connection") {
  if (!sealed_by_kernel()) return;
  LoopbackPair pair;
  for (const OwnFd* const end : {&pair.caller, &pair.called})
    REQUIRE(::fcntl(end->get(), F_SETFL, O_NONBLOCK) == 0);
  const auto here = Tls::call(pair.caller.get(), "secret", Tls::Records::here);
  const auto kernel = Tls::answer(pair.called.get(), {"secret"}, Tls::Records::in_kernel);
  Tls::Step one = Tls::Step::again, other = Tls::Step::again;
  for (int i = 0; i < 100 && (one != Tls::Step::done || other != Tls::Step::done); ++i) {
    if (one == Tls::Step::again) one = here->handshake();
    if (other == Tls::Step::again) other = kernel->handshake();
  }
  REQUIRE(one == Tls::Step::done);
  REQUIRE(other == Tls::Step::done);
  CHECK(here->kernel() == nullptr);
  REQUIRE(kernel->kernel() != nullptr);
  CHECK(here->binding() == kernel->binding());
  std::ranges::copy(std::as_bytes(std::span("hello", 5)), here->place().begin());
  REQUIRE(here->seal(5));
  REQUIRE(here->push());
  CHECK(hear_kernel(*kernel->kernel(), pair.called.get(), 5) == "hello");
  CHECK(send_text(*kernel->kernel(), "answer") == 6);
  CHECK(kernel->kernel()->handed() == 6 + kRecordOverhead);
  REQUIRE(comes(pair.caller.get()));
  here->begin_round();
  const std::span<const std::byte> answer = here->open();
  CHECK(std::string(reinterpret_cast<const char*>(answer.data()), answer.size()) == "answer");
}

TEST_CASE("records without data go to nobody's memory, and the kernel goes on with the next key") {
  if (!sealed_by_kernel()) return;
  ByHand ends;
  ends.say("before");
  auto update = kKeyUpdate;
  ends.say(RecordType::handshake, update);
  REQUIRE(ends.key.renew());
  ends.say("after");
  CHECK(ends.hear(11) == "beforeafter");
  update.back() = std::byte{1};  // this side's key, too
  ends.say(RecordType::handshake, update);
  REQUIRE(ends.key.renew());
  ends.say("asked");
  CHECK(ends.hear(5) == "asked");
  CHECK(send_text(*ends.records, "first") == 5);
  const auto [type, said] = ends.next();
  CHECK(type == RecordType::handshake);
  CHECK(said == std::string(reinterpret_cast<const char*>(kKeyUpdate.data()), kKeyUpdate.size()));
  REQUIRE(ends.theirs.renew());
  CHECK(ends.next() == std::pair(RecordType::data, std::string("first")));
  CHECK(send_text(*ends.records, "second") == 6);
  CHECK(ends.next() == std::pair(RecordType::data, std::string("second")));
}

TEST_CASE("what the other end may not say ends a connection of the kernel, and stores nothing") {
  if (!sealed_by_kernel()) return;
  const auto outcome = [](auto&& said) {
    ByHand ends;
    ends.say("good");
    CHECK(ends.hear(4) == "good");
    said(ends);
    int error = -1;
    CHECK(ends.hear(100, &error).empty());
    return error;
  };
  const std::byte odd[] = {std::byte{24}, std::byte{0}, std::byte{0},
                           std::byte{2},  std::byte{0}, std::byte{0}};
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::handshake, odd); }) == EBADMSG);
  const std::vector<std::byte> much(5000);
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::handshake, much); }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::alert, kBadRecordAlert); }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) {
          for (int i = 0; i < 40; ++i) {
            ends.say(RecordType::handshake, kKeyUpdate);
            REQUIRE(ends.key.renew());
          }
        }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) {
          std::vector<std::byte> record(100 + kRecordOverhead);
          REQUIRE(ends.key.seal(record.data(), 100, RecordType::data) == record.size());
          record[50] ^= std::byte{1};
          ends.send(record);
        }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) {  // the same record twice
          std::vector<std::byte> record(kRecordOverhead);
          REQUIRE(ends.key.seal(record.data(), 0, RecordType::data) == record.size());
          ends.send(record);
          ends.send(record);
        }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) { ends.send(odd); }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::handshake, {}); }) == EBADMSG);
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::alert, {}); }) == EBADMSG);
  constexpr std::byte kTooLong[] = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{255},
                                    std::byte{255}};
  CHECK(outcome([&](ByHand& ends) { ends.send(kTooLong); }) == EBADMSG);
  constexpr std::byte kLeaves[] = {std::byte{1}, std::byte{0}};
  CHECK(outcome([&](ByHand& ends) { ends.say(RecordType::alert, kLeaves); }) == 0);
}

TEST_CASE("the kernel says why it ends a connection") {
  if (!sealed_by_kernel()) return;
  ByHand ends;
  const std::byte odd[] = {std::byte{9}};
  ends.say(RecordType::handshake, odd);
  int error = 0;
  CHECK(ends.hear(1, &error).empty());
  CHECK(error == EBADMSG);
  CHECK(ends.next() ==
        std::pair(RecordType::alert, std::string(reinterpret_cast<const char*>(kBadRecordAlert.data()), 2)));
}

TEST_CASE("memory that is not there is no end of a connection of the kernel") {
  if (!sealed_by_kernel()) return;
  ByHand ends;
  void* const hole = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  const iovec piece{hole, 4096};
  CHECK(ends.records->send({&piece, 1}) == -1);
  CHECK(errno == EFAULT);
  char good[] = "good";
  const iovec behind_good[] = {{good, 4}, piece};
  const ssize_t taken = ends.records->send(behind_good);
  CHECK((taken == 4 || (taken == -1 && errno == EFAULT)));
  if (taken == 4) CHECK(ends.next() == std::pair(RecordType::data, std::string("good")));
  ends.say("text");
  REQUIRE(comes(ends.called.get()));
  CHECK(ends.records->receive({&piece, 1}) == -1);
  CHECK(errno == EFAULT);
  CHECK(ends.hear(4) == "text");
  CHECK(send_text(*ends.records, "text") == 4);
  CHECK(ends.next() == std::pair(RecordType::data, std::string("text")));
  ::munmap(hole, 4096);
}
