#include "fabric/address_vector/peer_records.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "fabric/types/error.h"

namespace fab {
namespace {

constexpr std::size_t kMaxAddress = 1 << 20;
constexpr std::size_t kMaxShaped = 1 << 16;  // longer addresses are kept as they are
constexpr std::size_t kGap = 4;              // equal bytes that do not end a run
constexpr std::size_t kExact = 47;           // records up to here have lists of their own length
constexpr std::uint64_t kMaxWords = std::numeric_limits<std::uint32_t>::max();

constexpr std::size_t words_for(std::size_t bytes) noexcept { return (bytes + 7) / 8; }

// The free list for a record of some size, and how many words the record really takes.
struct Class {
  std::size_t list, words;
};
Class class_of(std::size_t words) noexcept {
  if (words <= kExact) return {words, words};
  const auto power = std::max(6, static_cast<int>(std::bit_width(words - 1)));
  return {kExact + 1 + static_cast<std::size_t>(power - 6), std::size_t{1} << power};
}

}  // namespace

PeerRecords::~PeerRecords() {
  for (const auto& shape : shapes_) delete shape.load(std::memory_order_relaxed);
}

PeerRecords::Word* PeerRecords::words(std::uint32_t record, std::size_t count) const noexcept {
  if (record == 0 || count == 0) return nullptr;
  using Column = PeerColumn<Word, PeerSection::words>;
  const std::uint64_t last = std::uint64_t{record} + count - 1;
  if (Column::chunk_of(record) != Column::chunk_of(last)) return nullptr;
  return words_.find(record);
}

std::uint32_t PeerRecords::allocate(std::size_t words) {
  const auto [list, size] = class_of(words);
  PeerHeader& header = memory_.header();
  if (const std::uint32_t head = header.free_records[list].load(std::memory_order_relaxed)) {
    if (const Word* first = this->words(head, size)) {
      header.free_records[list].store(static_cast<std::uint32_t>(first->load(std::memory_order_relaxed)),
                                      std::memory_order_relaxed);
      return head;
    }
    header.free_records[list].store(0, std::memory_order_relaxed);  // a damaged list is given up
  }
  using Column = PeerColumn<Word, PeerSection::words>;
  std::uint64_t at = std::max<std::uint64_t>(header.words.load(std::memory_order_relaxed), 1);
  if (at > kMaxWords) throw Error(Errc::bad_state, "the address vector is damaged");
  while (Column::chunk_of(at) != Column::chunk_of(at + size - 1))
    at = Column::start_of(Column::chunk_of(at) + 1);
  if (at + size > kMaxWords) throw Error(Errc::no_memory, "the address vector is full");
  words_.make(at);
  header.words.store(at + size, std::memory_order_relaxed);
  return static_cast<std::uint32_t>(at);
}

void PeerRecords::free(std::uint32_t record, std::size_t words) noexcept {
  const auto [list, size] = class_of(words);
  Word* first = this->words(record, size);
  if (!first) return;
  auto& head = memory_.header().free_records[list];
  first->store(head.load(std::memory_order_relaxed), std::memory_order_relaxed);
  head.store(record, std::memory_order_relaxed);
}

void PeerRecords::write(std::uint32_t record, std::string_view bytes) {
  Word* to = words(record, std::max<std::size_t>(words_for(bytes.size()), 1));
  for (std::size_t at = 0; at < bytes.size(); at += 8, ++to) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    to->store(word, std::memory_order_relaxed);
  }
}

bool PeerRecords::fits(const Shape& shape, std::string_view address) noexcept {
  std::size_t at = 0;
  for (const Run& run : shape.runs) {
    if (std::memcmp(address.data() + at, shape.base.data() + at, run.at - at) != 0) return false;
    at = run.at + run.length;
  }
  return std::memcmp(address.data() + at, shape.base.data() + at, address.size() - at) == 0;
}

const PeerRecords::Shape* PeerRecords::shape(std::uint32_t number) const {
  if (number >= kMaxShapes) return nullptr;
  if (const Shape* known = shapes_[number].load(std::memory_order_acquire)) return known;
  if (number >= memory_.header().shapes.load(std::memory_order_acquire)) return nullptr;
  const std::uint32_t at = memory_.header().shape_at[number].load(std::memory_order_relaxed);
  const Word* head = words(at, 1);
  if (!head) return nullptr;
  const std::uint64_t sizes = head->load(std::memory_order_relaxed);
  const std::size_t length = sizes & 0xffffffff, runs = sizes >> 32;
  if (length == 0 || length > kMaxShaped || runs > length || !words(at, 1 + runs + words_for(length)))
    return nullptr;
  auto made = std::make_unique<Shape>();
  std::size_t end = 0;
  for (std::size_t i = 0; i < runs; ++i) {
    const std::uint64_t word = head[1 + i].load(std::memory_order_relaxed);
    const Run run{static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
    if (run.at < end || run.length == 0 || std::uint64_t{run.at} + run.length > length) return nullptr;
    end = std::size_t{run.at} + run.length;
    made->packed += run.length;
    made->runs.push_back(run);
  }
  made->base.resize(words_for(length) * 8);
  for (std::size_t i = 0; i < words_for(length); ++i) {
    const std::uint64_t word = head[1 + runs + i].load(std::memory_order_relaxed);
    std::memcpy(made->base.data() + i * 8, &word, 8);
  }
  made->base.resize(length);
  const Shape* expected = nullptr;
  if (shapes_[number].compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel))
    return made.release();
  return expected;
}

std::uint32_t PeerRecords::add_shape(const Shape& shape) {
  PeerHeader& header = memory_.header();
  const std::uint32_t number = header.shapes.load(std::memory_order_relaxed);
  if (number >= kMaxShapes) return kFormRaw;
  const std::uint32_t at = allocate(1 + shape.runs.size() + words_for(shape.base.size()));
  const std::uint64_t sizes = shape.base.size() | (std::uint64_t{shape.runs.size()} << 32);
  std::string bytes(reinterpret_cast<const char*>(&sizes), 8);
  for (const Run& run : shape.runs) {
    const std::uint64_t word = run.at | (std::uint64_t{run.length} << 32);
    bytes.append(reinterpret_cast<const char*>(&word), 8);
  }
  write(at, bytes.append(shape.base));
  header.shape_at[number].store(at, std::memory_order_relaxed);
  header.shapes.store(number + 1, std::memory_order_release);
  return number;
}

std::uint32_t PeerRecords::shape_for(std::string_view address) {
  if (address.empty() || address.size() > kMaxShaped) return kFormRaw;
  const auto same_length = [&](const Shape* found) { return found && found->base.size() == address.size(); };
  if (const Shape* last = shape(last_); same_length(last) && fits(*last, address)) return last_;
  const std::uint32_t count =
      std::min<std::uint32_t>(memory_.header().shapes.load(std::memory_order_relaxed), kMaxShapes);
  Shape best{.base = std::string(address), .runs = {}, .packed = address.size() * 3 / 4};
  for (std::uint32_t number = count; number-- > 0;) {
    const Shape* known = shape(number);
    if (!same_length(known)) continue;
    if (fits(*known, address)) return last_ = number;
    if (count == kMaxShapes) continue;
    // A copy of the known shape, with the places added where this address differs.
    std::vector<bool> differs(address.size());
    for (std::size_t i = 0; i < address.size(); ++i) differs[i] = address[i] != known->base[i];
    for (const Run& run : known->runs)
      for (std::size_t i = 0; i < run.length; ++i) differs[run.at + i] = true;
    Shape wider{.base = known->base, .runs = {}, .packed = 0};
    for (std::size_t i = 0; i < address.size(); ++i) {
      if (!differs[i]) continue;
      if (!wider.runs.empty() && i <= wider.runs.back().at + wider.runs.back().length + kGap)
        wider.runs.back().length = static_cast<std::uint32_t>(i + 1 - wider.runs.back().at);
      else
        wider.runs.push_back({static_cast<std::uint32_t>(i), 1});
    }
    for (const Run& run : wider.runs) wider.packed += run.length;
    if (wider.packed < best.packed) best = std::move(wider);
  }
  return last_ = add_shape(best);
}

PeerRecords::Stored PeerRecords::store(std::string_view address) {
  if (address.size() > kMaxAddress) throw Error(Errc::invalid, "an address is longer than 1 MiB");
  const std::uint32_t form = shape_for(address);
  if (form == kFormRaw) {
    const std::uint64_t length = address.size();
    const std::uint32_t record = allocate(1 + words_for(address.size()));
    write(record, std::string(reinterpret_cast<const char*>(&length), 8).append(address));
    return {form, record};
  }
  const Shape* found = shape(form);
  if (!found) throw Error(Errc::bad_state, "the address vector is damaged");
  const Shape& known = *found;
  if (known.packed == 0) return {form, 0};
  char local[512];
  std::string large;
  char* packed = local;
  if (known.packed > sizeof local) packed = (large.resize(known.packed), large.data());
  char* to = packed;
  for (const Run& run : known.runs) to = std::copy_n(address.data() + run.at, run.length, to);
  const std::uint32_t record = allocate(words_for(known.packed));
  write(record, {packed, known.packed});
  return {form, record};
}

void PeerRecords::release(Stored stored) noexcept {
  if (stored.form == kFormRaw) {
    const Word* head = words(stored.record, 1);
    if (head && head->load(std::memory_order_relaxed) <= kMaxAddress)
      free(stored.record, 1 + words_for(head->load(std::memory_order_relaxed)));
  } else if (const Shape* known = shape(stored.form); known && known->packed) {
    free(stored.record, words_for(known->packed));
  }
}

std::size_t PeerRecords::read(Stored stored, char* out, std::size_t room) const {
  const auto copy = [&](const Word* from, std::size_t length, char* to) {
    for (std::size_t at = 0; at < length; at += 8, ++from) {
      const std::uint64_t word = from->load(std::memory_order_relaxed);
      std::memcpy(to + at, &word, std::min<std::size_t>(8, length - at));
    }
  };
  if (stored.form == kFormRaw) {
    const Word* head = words(stored.record, 1);
    const std::uint64_t length = head ? head->load(std::memory_order_relaxed) : 0;
    if (length > kMaxAddress || !words(stored.record, 1 + words_for(length))) return 0;
    if (length <= room) copy(head + 1, length, out);
    return length;
  }
  const Shape* known = shape(stored.form);
  if (!known) return 0;
  const std::size_t length = known->base.size();
  if (length > room) return length;
  const Word* from = known->packed ? words(stored.record, words_for(known->packed)) : nullptr;
  if (known->packed && !from) return 0;
  char local[512];
  std::string large;
  char* packed = local;
  if (known->packed > sizeof local - 8) packed = (large.resize(known->packed), large.data());
  copy(from, known->packed, packed);
  known->base.copy(out, length);
  for (const Run& run : known->runs) {
    std::memcpy(out + run.at, packed, run.length);
    packed += run.length;
  }
  return length;
}

}  // namespace fab
