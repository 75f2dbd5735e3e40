#include "base/queues/spsc_ring.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace fab;

struct Ring {
  explicit Ring(std::size_t size) : bytes(size) {}
  RingIndices indices{};
  std::vector<std::byte> bytes;
  RingWriter writer{indices, bytes};
  RingReader reader{indices, bytes};
};

std::string text_of(Ring& ring, std::size_t room) {
  std::string text(room, '\0');
  iovec place{text.data(), text.size()};
  text.resize(ring.reader.read(&place, 1));
  return text;
}

std::size_t put(Ring& ring, std::string text) {
  iovec piece{text.data(), text.size()};
  return ring.writer.write(&piece, 1);
}

// A byte stream whose value at each position is known.
std::byte byte_at(std::uint64_t position) {
  return static_cast<std::byte>((position * 0x9E3779B97F4A7C15ull) >> 56);
}

}  // namespace

TEST_CASE("bytes come out in the order in which they went in, over the end of the ring") {
  Ring ring(8);
  CHECK(put(ring, "abcdef") == 6);
  CHECK(text_of(ring, 4) == "abcd");
  CHECK(put(ring, "ghijklmn") == 6);  // six of eight bytes are free
  CHECK(put(ring, "x") == 0);
  CHECK(text_of(ring, 100) == "efghijkl");
  CHECK(text_of(ring, 100).empty());
}

TEST_CASE("pieces and places are gathered and scattered") {
  Ring ring(16);
  char a[] = "one", b[] = "", c[] = "three";
  const iovec pieces[] = {{a, 3}, {b, 0}, {c, 5}};
  CHECK(ring.writer.write(pieces, 3) == 8);
  char first[2], second[10];
  const iovec places[] = {{first, 2}, {second, 10}};
  CHECK(ring.reader.read(places, 2) == 8);
  CHECK(std::string(first, 2) + std::string(second, 6) == "onethree");
}

TEST_CASE("a writer that waits is told once there is room") {
  Ring ring(4);
  CHECK(ring.writer.wait_for_room());  // there is some
  CHECK_FALSE(ring.reader.writer_waits());
  put(ring, "full");
  CHECK_FALSE(ring.writer.wait_for_room());
  text_of(ring, 1);
  CHECK(ring.reader.writer_waits());
  CHECK_FALSE(ring.reader.writer_waits());
}

TEST_CASE("a writer that needs room for all of something waits until there is as much") {
  Ring ring(4);
  put(ring, "abc");
  CHECK(ring.writer.wait_for_room(1));
  CHECK_FALSE(ring.writer.wait_for_room(2));
  CHECK(ring.reader.seen_written() == 3);
  CHECK(ring.reader.position() == 0);
  text_of(ring, 1);
  CHECK(ring.reader.position() == 1);
  CHECK(ring.reader.writer_waits());
  CHECK(ring.writer.wait_for_room(2));
  CHECK_FALSE(ring.writer.wait_for_room(5));
}

TEST_CASE("indices that no honest peer stores break the ring, and nothing is moved any more") {
  SUBCASE("more written than the ring holds") {
    Ring ring(8);
    ring.indices.written.store(9);
    CHECK_FALSE(ring.reader.readable());
    CHECK(ring.reader.broken());
    ring.indices.written.store(4);
    CHECK(text_of(ring, 8).empty());
  }
  SUBCASE("written goes back") {
    Ring ring(8);
    put(ring, "abcd");
    CHECK(text_of(ring, 4) == "abcd");
    ring.indices.written.store(2);
    CHECK_FALSE(ring.reader.readable());
    CHECK(ring.reader.broken());
  }
  SUBCASE("read overtakes what was written") {
    Ring ring(8);
    put(ring, "abcd");
    ring.indices.read.store(5);
    CHECK(put(ring, "e") == 0);
    CHECK(ring.writer.broken());
  }
  SUBCASE("read goes back") {
    Ring ring(8);
    put(ring, "abcd");
    text_of(ring, 4);
    put(ring, "efgh");
    ring.indices.read.store(1);
    CHECK(put(ring, "i") == 0);
    CHECK(ring.writer.broken());
  }
}

TEST_CASE("two threads: a long stream in random pieces arrives unchanged, whatever the size of the ring") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{64}, std::size_t{4096}}) {
    CAPTURE(size);
    const std::uint64_t total = size == 1 ? 20'000 : 2'000'000;
    Ring ring(size);
    std::thread writer([&] {
      std::mt19937 random(1);
      std::vector<std::byte> bytes(3 * 97);
      for (std::uint64_t position = 0; position < total;) {
        const std::size_t most = std::min<std::uint64_t>(bytes.size(), total - position);
        for (std::size_t i = 0; i < most; ++i) bytes[i] = byte_at(position + i);
        const std::size_t cut = random() % (most + 1);
        const iovec pieces[] = {{bytes.data(), cut}, {bytes.data() + cut, most - cut}};
        const std::size_t sent = ring.writer.write(pieces, 2);
        position += sent;
        if (sent == 0) std::this_thread::yield();
      }
    });
    std::mt19937 random(2);
    std::vector<std::byte> bytes(301);
    std::uint64_t wrong = 0;
    for (std::uint64_t position = 0; position < total;) {
      const std::size_t cut = random() % bytes.size();
      const iovec places[] = {{bytes.data(), cut}, {bytes.data() + cut, bytes.size() - cut}};
      const std::size_t got = ring.reader.read(places, 2);
      for (std::size_t i = 0; i < got; ++i) wrong += bytes[i] != byte_at(position + i);
      position += got;
      if (got == 0) std::this_thread::yield();
    }
    writer.join();
    CHECK(wrong == 0);
    CHECK_FALSE(ring.reader.readable());
    CHECK_FALSE(ring.writer.broken());
    CHECK_FALSE(ring.reader.broken());
  }
}

TEST_CASE("two threads: a writer that sleeps on a full ring is always woken") {
  Ring ring(16);
  constexpr std::uint64_t kTotal = 200'000;
  std::atomic<std::uint32_t> told{0};
  std::thread writer([&] {
    std::byte bytes[16] = {};
    iovec piece{bytes, sizeof bytes};
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const std::uint32_t before = told.load();
      const std::size_t now = ring.writer.write(&piece, 1);
      sent += now;
      if (now == 0 && !ring.writer.wait_for_room()) told.wait(before);  // hangs if the reader forgets to tell
    }
  });
  std::byte bytes[7];
  iovec place{bytes, sizeof bytes};
  for (std::uint64_t got = 0; got < kTotal;) {
    const std::size_t now = ring.reader.read(&place, 1);
    got += now;
    if (now && ring.reader.writer_waits()) {
      told.fetch_add(1);
      told.notify_one();
    }
  }
  writer.join();
  CHECK_FALSE(ring.writer.broken());
}
