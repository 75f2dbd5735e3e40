// The ring of base/queues/spsc_ring.h, with one thread on each side.

#include "base/queues/spsc_ring.h"

#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <thread>

#include "model/model.h"

using namespace fab;
using model::Kind;

namespace {

constexpr std::size_t kRoom = 4;  // bytes of the ring

// The memory of a ring and both of its ends, each of which has private memory of its own.
struct Ring {
  RingIndices indices{};
  alignas(8) std::array<std::byte, kRoom> bytes{};
  std::optional<RingWriter> writer;
  std::optional<RingReader> reader;
  model::Signal room, data;
  std::atomic<std::uint32_t> work{0};  // ContextSlot::work of the reader, which is raised for each signal
  unsigned got = 0;

  void reset() {
    indices.written.store(0);
    indices.read.store(0);
    indices.writer_waits.store(0);
    bytes = {};
    writer.emplace(indices, bytes);
    reader.emplace(indices, bytes);
    room.reset();
    data.reset();
    work.store(0);
    got = 0;
    model::watch(bytes.data(), bytes.size());
    model::name(indices.written, "written");
    model::name(indices.read, "read");
    model::name(indices.writer_waits, "writer_waits");
    model::name(bytes, "bytes");
    model::name(work, "work");
  }
  // Writes the next bytes, which count up from 1, as many of `length` as fit.
  std::size_t write(unsigned from, std::size_t length) {
    std::array<std::byte, kRoom> next;
    for (std::size_t i = 0; i < length; ++i) next[i] = static_cast<std::byte>(from + i + 1);
    const iovec piece{next.data(), length};
    return writer->write(&piece, 1);
  }
  std::size_t read(std::size_t length) {
    std::array<std::byte, kRoom> next{};
    const iovec place{next.data(), length};
    const std::size_t count = reader->read(&place, 1);
    for (std::size_t i = 0; i < count; ++i)
      model::check(next[i] == static_cast<std::byte>(++got), "a byte is not the one that was written");
    return count;
  }
} ring;

// Seven bytes through a ring of four, in pieces of up to three; who cannot go on looks again.
model::Scenario polling() {
  constexpr unsigned kAll = 7;
  return {.setup = [] { ring.reset(); },
          .threads = {[] {
                        for (unsigned sent = 0; sent < kAll;) {
                          const std::size_t done = ring.write(sent, std::min(3u, kAll - sent));
                          sent += static_cast<unsigned>(done);
                          if (done == 0) std::this_thread::yield();
                        }
                      },
                      [] {
                        while (ring.got < kAll)
                          if (ring.read(3) == 0) std::this_thread::yield();
                      }},
          .finish =
              [] {
                model::check(!ring.writer->broken() && !ring.reader->broken(), "an end is broken");
                model::check(ring.writer->all_read(), "something is left");
              }};
}

// As Channel::send_out() and take_in() do it: who cannot go on sleeps until the other side says so. What the
// writer is told orders no memory here, so that the ring alone has to see to it that nothing is lost.
model::Scenario sleeping() {
  constexpr unsigned kAll = 7;
  return {.setup = [] { ring.reset(); },
          .threads = {[] {
                        for (unsigned sent = 0; sent < kAll;) {
                          const std::size_t done = ring.write(sent, std::min(4u, kAll - sent));
                          sent += static_cast<unsigned>(done);
                          if (done != 0) {
                            ring.work.fetch_or(1);
                            ring.data.send();
                          } else if (!ring.writer->wait_for_room()) {
                            ring.room.wait();
                          }
                        }
                      },
                      [] {
                        while (ring.got < kAll) {
                          bool tell = false;
                          while (ring.reader->readable()) {
                            ring.read(4);
                            if (ring.reader->writer_waits()) tell = true;
                          }
                          if (tell) ring.room.send();
                          if (ring.got == kAll) break;
                          ring.data.wait();
                          ring.work.exchange(0);
                        }
                      }},
          .finish = [] { model::check(ring.writer->all_read(), "something is left"); }};
}

}  // namespace

TEST_CASE("bytes come through the ring as they were written") {
  model::holds("ring, polling", polling(), {.preemptions = 4});
}

TEST_CASE("a writer that sleeps on a full ring is woken") {
  model::holds("ring, sleeping", sleeping(), {.preemptions = 4});
}

TEST_CASE("the orders of the ring are needed") {
  const auto weaker = [](Kind kind, const auto& where, std::memory_order order) {
    return model::Weaker{kind, order, &where, sizeof where};
  };
  using enum std::memory_order;
  const RingIndices& at = ring.indices;
  model::fails("written is stored", polling(), {weaker(Kind::store, at.written, relaxed)},
               "data race: bytes");
  model::fails("written is loaded", polling(), {weaker(Kind::load, at.written, relaxed)}, "data race: bytes");
  model::fails("read is stored", polling(), {weaker(Kind::store, at.read, relaxed)}, "data race: bytes");
  model::fails("read is loaded", polling(), {weaker(Kind::load, at.read, relaxed)}, "data race: bytes");
  const char* const lost = "each thread waits for another one";
  model::fails("read is stored", sleeping(), {weaker(Kind::store, at.read, release)}, lost);
  model::fails("read is loaded", sleeping(), {weaker(Kind::load, at.read, acquire)}, lost);
  model::fails("writer_waits is stored", sleeping(), {weaker(Kind::store, at.writer_waits, release)}, lost);
  model::fails("writer_waits is loaded", sleeping(), {weaker(Kind::load, at.writer_waits, acquire)}, lost);
}
