#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabric/address_vector/peer_memory.h"

namespace fab {

// The bytes of addresses, packed: peers of one job differ in few bytes, so an address is kept as the number
// of a *shape* (a whole address, and where others of its length differ from it) and the bytes at those
// places. Shapes come from the addresses themselves and are never changed. Writers hold the memory's lock;
// readers need none. What is read from a record that is freed meanwhile has no meaning, and the entry's
// generation shows that.
class PeerRecords {
 public:
  explicit PeerRecords(PeerMemory& memory) : memory_(memory), words_(memory) {}
  ~PeerRecords();
  PeerRecords(const PeerRecords&) = delete;
  PeerRecords& operator=(const PeerRecords&) = delete;

  struct Stored {
    std::uint32_t form, record;
  };
  Stored store(std::string_view address);  // throws Error(no_memory)
  void release(Stored stored) noexcept;
  // Length of the address and, if `room` suffices, its bytes in `out`. For a record that is freed meanwhile
  // the result has no meaning.
  std::size_t read(Stored stored, char* out, std::size_t room) const;

 private:
  struct Run {
    std::uint32_t at, length;
  };
  struct Shape {
    std::string base;
    std::vector<Run> runs;
    std::size_t packed = 0;  // bytes at the runs
  };
  using Word = std::atomic<std::uint64_t>;

  const Shape* shape(std::uint32_t number) const;  // null if there is none, or it is not valid
  static bool fits(const Shape& shape, std::string_view address) noexcept;
  std::uint32_t shape_for(std::string_view address);  // kFormRaw: none, keep the whole address
  std::uint32_t add_shape(const Shape& shape);
  std::uint32_t allocate(std::size_t words);
  void free(std::uint32_t record, std::size_t words) noexcept;
  // The words of one record; null if not all of them are there.
  Word* words(std::uint32_t record, std::size_t count) const noexcept;
  void write(std::uint32_t record, std::string_view bytes);

  PeerMemory& memory_;
  mutable PeerColumn<Word, PeerSection::words> words_;
  mutable std::array<std::atomic<const Shape*>, kMaxShapes> shapes_{};  // read from the memory on first use
  std::uint32_t last_ = 0;
};

}  // namespace fab
