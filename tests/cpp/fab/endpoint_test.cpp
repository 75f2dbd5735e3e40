// The interface for programs, as they use it: these includes are all of the library that there is.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fab/fab.h"
#include "fab/pair.h"

using fab::test::Pair;

namespace {

const char* const kLinks[] = {"shm", "tcp", "shm+tcp"};

template <class Call>
fab::Error caught(const Call& call) {
  try {
    call();
  } catch (const fab::Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return {0, ""};
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("what is put is at the target, and what is got comes from there") {
  for (const std::string links : kLinks)
    for (const bool allocated : {false, true}) {
      CAPTURE(links);
      CAPTURE(allocated);
      Pair pair(links, allocated ? fab::allocate(4096) : fab::Memory(std::vector<std::byte>(4096)));
      CHECK(pair.remote.size() == 4096);
      CHECK(pair.remote.key() == pair.region.remote().key());
      const std::string text = "put by another one";
      fab::Request put = pair.initiator.put(pair.peer, text, pair.remote, 100);
      put.wait(10);
      CHECK(put.done());
      CHECK(put.size() == text.size());
      CHECK(put.error().empty());
      CHECK(std::string(reinterpret_cast<const char*>(pair.bytes.data()) + 100, text.size()) == text);
      std::string got(text.size(), '\0');
      pair.initiator.get(pair.peer, got, pair.remote, 100).wait(10);
      CHECK(got == text);
      CHECK(says(pair.initiator.way_to(pair.peer), links == "tcp" ? "tcp.0 (" : "shm.0 ("));
    }
}

TEST_CASE("a request keeps what was moved in, also when it is dropped before it is done") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    constexpr std::size_t kBytes = 8 << 20;
    auto landing = std::make_shared<std::vector<std::uint8_t>>(kBytes);
    Pair pair(links, fab::Memory(landing));
    std::weak_ptr<std::vector<std::uint8_t>> last;
    for (std::uint8_t value = 1; value <= 3; ++value) {
      auto source = std::make_shared<std::vector<std::uint8_t>>(kBytes, value);
      last = source;
      (void)pair.initiator.put(pair.peer, std::move(source), pair.remote);
    }
    CHECK(pair.initiator.flush(20));
    CHECK(*landing == std::vector<std::uint8_t>(kBytes, 3));
    CHECK(last.expired());
  }
}

TEST_CASE("a request whose memory is borrowed ends when the operation does") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    const std::vector<std::uint8_t> content(8 << 20, 7);
    Pair pair(links, fab::Memory(std::make_shared<std::vector<std::uint8_t>>(content)));
    std::vector<std::uint8_t> got(content.size()), message(content.size());
    (void)pair.initiator.get(pair.peer, got, pair.remote);
    CHECK(got == content);
    {
      const fab::Request matched = pair.target.recv(message, 5);
      const fab::Request sent = pair.initiator.send(pair.peer, content, 5);
    }
    CHECK(message == content);
  }
}

TEST_CASE("in a child of fork() nothing is started, and what the parent had is left alone") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    Pair pair(links);
    std::vector<char> landing(8);
    pair.initiator.put(pair.peer, std::vector<char>(8, 'p'), pair.remote).wait(10);
    std::optional<fab::Request> waits = pair.initiator.recv(landing);
    const pid_t child = ::fork();
    if (child == 0) {
      int refused = 0;
      const auto count = [&](const auto& call) {
        try {
          call();
        } catch (const fab::Error& error) {
          refused += error.code() == EBADF;
        }
      };
      waits.reset();
      count([&] { (void)pair.initiator.put(pair.peer, std::vector<char>(8, 'c'), pair.remote); });
      count([&] { (void)pair.initiator.send(pair.peer, std::vector<char>(8)); });
      count([&] { (void)pair.initiator.recv(std::vector<char>(8)); });
      count([&] { (void)pair.initiator.fetch_add<int>(pair.peer, 1, pair.remote); });
      count([&] { (void)pair.initiator.address(); });
      count([&] { (void)pair.region.remote(); });
      ::_exit(refused);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 6);
    CHECK(pair.bytes.as<char>()[0] == 'p');
    pair.target.send(pair.back, std::vector<char>(8, 'm')).wait(10);
    waits->wait(10);
    CHECK(landing == std::vector<char>(8, 'm'));
  }
}

TEST_CASE("a part of allocated memory is reached as the whole is") {
  const fab::Memory memory = fab::allocate(1 << 16);
  Pair pair("shm", memory.part(4096, 4096));
  pair.initiator.put(pair.peer, std::string("here"), pair.remote, 10).wait(10);
  CHECK(pair.initiator.way_to(pair.peer) == "shm.0 (mapped)");
  CHECK(memory.as<char>()[4096 + 10] == 'h');
}

TEST_CASE("updates are atomic, and tell the former value in its type") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    Pair pair(links);
    const auto former = [](fab::Request request, auto type) {
      request.wait(10);
      return request.value<decltype(type)>();
    };
    CHECK(former(pair.initiator.fetch_add<std::int64_t>(pair.peer, -7, pair.remote, 8), std::int64_t{}) == 0);
    CHECK(former(pair.initiator.fetch_add<std::int64_t>(pair.peer, 2, pair.remote, 8), std::int64_t{}) == -7);
    CHECK(former(pair.initiator.exchange<std::int64_t>(pair.peer, 40, pair.remote, 8), std::int64_t{}) == -5);
    CHECK(former(pair.initiator.compare_exchange<std::int64_t>(pair.peer, 41, 1, pair.remote, 8),
                 std::int64_t{}) == 40);
    CHECK(former(pair.initiator.compare_exchange<std::int64_t>(pair.peer, 40, 1, pair.remote, 8),
                 std::int64_t{}) == 40);
    CHECK(pair.bytes.as<std::int64_t>()[1] == 1);
    CHECK(former(pair.initiator.fetch_add<double>(pair.peer, 0.5, pair.remote, 16), double{}) == 0);
    CHECK(former(pair.initiator.fetch_add<float>(pair.peer, 1.5f, pair.remote, 24), float{}) == 0);
    CHECK(former(pair.initiator.fetch_add<std::uint8_t>(pair.peer, 200, pair.remote, 28), std::uint8_t{}) ==
          0);
    CHECK(former(pair.initiator.fetch_add<std::uint16_t>(pair.peer, 60000, pair.remote, 30),
                 std::uint16_t{}) == 0);
    CHECK(pair.bytes.as<double>()[2] == 0.5);
    CHECK(pair.bytes.as<float>()[6] == 1.5f);
    CHECK(pair.bytes.as<std::uint8_t>()[28] == 200);
    CHECK(pair.bytes.as<std::uint16_t>()[15] == 60000);

    fab::Request add = pair.initiator.fetch_add<std::int32_t>(pair.peer, 1, pair.remote);
    add.wait(10);
    CHECK(says(caught([&] { (void)add.value<double>(); }).what(),
               "of a signed number of 4 bytes, and a floating-point number of 8 bytes is asked for"));
    CHECK_THROWS_AS((void)add.value<float>(), fab::Error);
    CHECK_THROWS_AS((void)add.value<std::uint32_t>(), fab::Error);
    fab::Request put = pair.initiator.put(pair.peer, std::vector<char>(1), pair.remote);
    put.wait(10);
    CHECK(says(caught([&] { (void)put.value<char>(); }).what(), "this is a write"));
  }
}

TEST_CASE("messages meet by tag and source") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    Pair pair(links);
    std::string first(32, '\0'), second(32, '\0');
    fab::Request any = pair.target.recv(first, 0x10, fab::kAnyPeer, 0xf);
    fab::Request from = pair.target.recv(second, 7, pair.back);
    CHECK_FALSE(any.done());
    pair.initiator.send(pair.peer, std::string("seven"), 7).wait(10);
    pair.initiator.send(pair.peer, std::string("seventeen"), 0x11).wait(10);
    any.wait(10);
    from.wait(10);
    CHECK(first.substr(0, any.size()) == "seventeen");
    CHECK(any.tag() == 0x11);
    CHECK(any.source() == pair.back);
    CHECK(second.substr(0, from.size()) == "seven");
  }
}

TEST_CASE("a receive is canceled on request, and where its request is dropped") {
  Pair pair("shm");
  std::string landing(8, '-');
  fab::Request waits = pair.target.recv(landing, 1);
  CHECK_FALSE(waits.wait_for(0));
  CHECK(caught([&] { waits.wait(0); }).code() == ETIMEDOUT);
  waits.cancel();
  waits.cancel();
  CHECK(caught([&] { waits.wait(10); }).code() == ECANCELED);
  {
    const fab::Request dropped = pair.target.recv(landing, 1);
  }
  fab::Request next = pair.target.recv(std::vector<char>(8), 1);
  pair.initiator.send(pair.peer, std::string("for next"), 1).wait(10);
  next.wait(10);
  CHECK(next.size() == 8);
  CHECK(landing == "--------");
}

TEST_CASE("errors say what was asked, what was found, and what to do") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    Pair pair(links);
    const fab::Error beyond =
        caught([&] { (void)pair.initiator.put(pair.peer, std::vector<char>(10), pair.remote, 4090); });
    CHECK(beyond.code() == EFAULT);
    CHECK(std::string(beyond.what()) == "write of 10 bytes at 4090: the region has 4096 bytes");

    const fab::Region only_read =
        pair.target_domain.register_memory({.buffers = {std::vector<char>(64)}, .access = fab::Access::read});
    fab::Request refused = pair.initiator.put(pair.peer, std::vector<char>(8), only_read.remote());
    const fab::Error why = caught([&] { refused.wait(10); });
    CHECK(why.code() == EACCES);
    CHECK(std::string(why.name()) == "FI_EACCES");
    CHECK(says(why.what(), "write of 8 bytes at 0 of key "));
    CHECK(says(why.what(), " failed: "));
    CHECK(refused.error() == why.what());
    CHECK_THROWS_AS((void)refused.size(), fab::Error);

    CHECK(pair.region.close());
    CHECK(pair.region.close(0));
    CHECK(pair.region.size() == 4096);
    CHECK(caught([&] { (void)pair.region.remote(); }).code() == EBADF);
    const fab::Error gone =
        caught([&] { pair.initiator.put(pair.peer, std::vector<char>(8), pair.remote).wait(10); });
    CHECK(gone.code() == EKEYREJECTED);
    CHECK(says(gone.what(), "keep that"));

    const std::string constant = "constant";
    CHECK(caught([&] { (void)pair.initiator.get(pair.peer, constant, pair.remote); }).code() == EINVAL);
    CHECK(caught([&] { (void)pair.target.recv(constant); }).code() == EINVAL);
    CHECK(caught([&] { (void)pair.target_domain.register_memory({.buffers = {constant}}); }).code() ==
          EINVAL);
    CHECK(caught([&] { (void)pair.initiator.insert("no address"); }).code() == EINVAL);
    CHECK(caught([&] { fab::Remote("no region"); }).code() == EINVAL);
    CHECK(caught([&] {
            (void)pair.initiator.put(fab::Peer{77}, std::vector<char>(1), only_read.remote());
          }).code() == EINVAL);
    pair.initiator.remove(pair.peer);
    CHECK(caught([&] {
            (void)pair.initiator.put(pair.peer, std::vector<char>(1), only_read.remote());
          }).code() == EINVAL);
  }
  CHECK(caught([] { fab::Domain("no such link"); }).code() == EINVAL);
}

TEST_CASE("what is under way when an endpoint closes is canceled, and requests outlive it") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    std::optional<fab::Request> waits;
    std::string landing(8, '-');
    {
      const fab::Domain domain(links);
      fab::Endpoint endpoint(domain);
      waits = endpoint.recv(landing);
      fab::Endpoint moved = std::move(endpoint);
      moved.close();
      moved.close();
      CHECK(caught([&] { (void)moved.recv(landing); }).code() == EBADF);
      CHECK(caught([&] { (void)moved.address(); }).code() == EBADF);
    }
    CHECK(waits->done());
    CHECK(caught([&] { waits->wait(); }).code() == ECANCELED);
  }
}

TEST_CASE("a lost peer is an error, not a wait") {
  for (const std::string links : kLinks) {
    CAPTURE(links);
    Pair pair(links);
    pair.initiator.put(pair.peer, std::vector<char>(8), pair.remote).wait(10);
    pair.target.close();
    pair.region.close();
    const fab::Error lost =
        caught([&] { pair.initiator.put(pair.peer, std::vector<char>(8), pair.remote).wait(20); });
    CHECK((lost.code() == ECONNRESET || lost.code() == EHOSTUNREACH || lost.code() == EKEYREJECTED));
  }
}

TEST_CASE("threads share an endpoint") {
  Pair pair("shm+tcp");
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round)
        pair.initiator.fetch_add<std::uint64_t>(pair.peer, 1, pair.remote).wait(20);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(pair.bytes.as<std::uint64_t>()[0] == kThreads * kRounds);
}

TEST_CASE("under manual progress the program moves the target") {
  const fab::Domain domain("tcp", {.manual_progress = true}), other("tcp");
  fab::Endpoint target(domain), initiator(other);
  fab::Domain same = domain;
  std::vector<char> bytes(64);
  const fab::Region region = same.register_memory({.buffers = {bytes}});
  fab::Request put =
      initiator.put(initiator.insert(target.address()), std::vector<char>(64, 'x'), region.remote());
  while (!put.wait_for(0.001)) target.progress();
  put.wait();
  CHECK(bytes == std::vector<char>(64, 'x'));

  // Whoever waits moves all endpoints of the domain.
  fab::Endpoint beside(domain);
  const fab::Peer peer = beside.insert(target.address());
  beside.put(peer, std::vector<char>(64, 'y'), region.remote()).wait(10);
  (void)beside.put(peer, std::vector<char>(64, 'z'), region.remote());
  CHECK(beside.flush(10));
  CHECK(bytes == std::vector<char>(64, 'z'));
}

TEST_CASE("the headers say which version they belong to") {
  CHECK(FAB_VERSION_MAJOR >= 0);
  CHECK(FAB_VERSION_MAJOR + FAB_VERSION_MINOR + FAB_VERSION_PATCH > 0);
}
