#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "fabric/address_vector/named_peer_memory.h"
#include "fabric/address_vector/open_peer_memory.h"
#include "fabric/types/versions.h"
#include "input.h"

// The memory of an address vector of which others write what they like: the one of a process, whose words
// change between calls, and now and then a file, as somebody opens it who finds it in use.

using namespace fab;
using namespace fab::test;

namespace {

constexpr unsigned kKinds = 8;  // of options
AddressVectorOptions options_of(std::uint8_t kind) {
  const bool sockets = kind % 2 != 0;
  return {.format = sockets ? AddressFormat::sockaddr_in : AddressFormat::bundle,
          .symmetric = sockets,
          .user_ids = (kind & 2) != 0,
          .reject_duplicates = (kind & 4) != 0};
}

// Chunks that were made once. One that is not in use is zero, and nobody may touch it.
class Chunks {
 public:
  static constexpr unsigned kKept = 4;  // of each section; longer ones are rare
  Chunks() {
    for (unsigned section = 0; section < kPeerSections; ++section)
      for (unsigned chunk = 0; chunk < kKept; ++chunk) {
        Chunk& made = chunks_[section][chunk];
        made = {std::make_unique<std::byte[]>(kFirst << chunk), 0};
        __asan_poison_memory_region(made.memory.get(), kFirst << chunk);
      }
  }
  std::byte* take(unsigned section, unsigned chunk, std::size_t bytes) {
    Chunk& taken = chunks_[section][chunk];
    demand(bytes <= kFirst << chunk && taken.bytes == 0, "a chunk is as long as it should be, and made once");
    taken.bytes = bytes;
    __asan_unpoison_memory_region(taken.memory.get(), bytes);
    return taken.memory.get();
  }
  // 0: it is not in use.
  std::size_t bytes(unsigned section, unsigned chunk) const { return chunks_[section][chunk].bytes; }
  void put_back(unsigned section, unsigned chunk) {
    Chunk& taken = chunks_[section][chunk];
    std::memset(taken.memory.get(), 0, taken.bytes);
    __asan_poison_memory_region(taken.memory.get(), taken.bytes);
    taken.bytes = 0;
  }

 private:
  static constexpr std::size_t kFirst = 4096;  // bytes that the first chunk of a section has at most
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;  // in use
  };
  std::array<std::array<Chunk, kKept>, kPeerSections> chunks_;
};
Chunks& chunks() {
  static auto* const made = new Chunks;
  return *made;
}

// The memory of a process, without a system call.
class FuzzedMemory final : public PeerMemory {
 public:
  explicit FuzzedMemory(std::uint8_t kind) {
    header_ = &bytes_;
    static const auto* const described = describe_all();
    std::memcpy(static_cast<void*>(&bytes_), &(*described)[kind % kKinds], offsetof(PeerHeader, writing));
  }
  ~FuzzedMemory() override {
    for (const auto& [section, chunk] : taken_) chunks().put_back(section, chunk);
  }

 private:
  // What describe() writes, with one seed for all: the same input is the same story.
  static const std::array<PeerHeader, kKinds>* describe_all() {
    auto* const all = new std::array<PeerHeader, kKinds>{};
    for (unsigned kind = 0; kind < kKinds; ++kind) {
      describe((*all)[kind], options_of(static_cast<std::uint8_t>(kind)));
      (*all)[kind].seed = 1;
    }
    return all;
  }
  void lock() override {}
  void unlock() noexcept override {}
  std::byte* attach(unsigned, unsigned) const noexcept override { return nullptr; }
  std::byte* create(unsigned section, unsigned chunk, std::size_t bytes) override {
    if (chunk >= kPeerChunks || bytes > std::size_t{1} << 24) throw Error(Errc::no_memory, "too large");
    std::byte* made = nullptr;
    if (chunk < Chunks::kKept) {
      made = chunks().take(section, chunk, bytes);
      taken_.emplace_back(section, chunk);
    } else {
      long_.push_back(Mapping::anonymous(bytes));
      made = long_.back().data();
    }
    set(section, chunk, made);
    return made;
  }
  PeerHeader bytes_{};
  std::vector<std::pair<unsigned, unsigned>> taken_;
  std::vector<Mapping> long_;
};

constexpr std::uint64_t kWords[] = {
    0, 1, 0x7fffffff, 0xffffffff, std::uint64_t{1} << 32, ~std::uint64_t{0}, 4096, 12288};

std::uint64_t word(Input& input) {
  const std::uint8_t kind = input.byte();
  if (kind < 96) return kind;
  return kind < 160 ? kWords[kind % std::size(kWords)] : input.get<std::uint64_t>();
}

std::string address_of(const AddressVector& vector, int number) {
  return vector.options().format == AddressFormat::bundle ? name_of(number) : socket_of(number);
}

void use(AddressVector& vector, Input& input) {
  const int number = input.byte() % 64;
  switch (input.byte() % 6) {
    case 0:
    case 1:
      may_refuse([&] { vector.insert(address_of(vector, number)); });
      break;
    case 2:
      may_refuse([&] { vector.remove(static_cast<PeerId>(number)); });
      break;
    case 3:
      may_refuse([&] { vector.lookup(input.byte() < 200 ? static_cast<PeerId>(number) : word(input)); });
      break;
    case 4:
      may_refuse([&] {
        vector.find(vector.options().format == AddressFormat::bundle
                        ? part_of(number)
                        : Part{std::string(kSocketLink), 0, socket_of(number)});
      });
      break;
    default:
      vector.contains(word(input));
      vector.generation(word(input));
      vector.reported(word(input));
      demand(vector.size() <= vector.end() && vector.end() <= kMaxPeers, "a vector has no more than fit");
  }
}

// A word behind what a vector compares when it opens.
void change(PeerHeader& header, Input& input) {
  auto* const words = reinterpret_cast<std::uint32_t*>(&header.writing);
  constexpr std::size_t kCount = (offsetof(PeerHeader, file_length) - offsetof(PeerHeader, writing)) / 4;
  // Most of the header is places of shapes, and runs.
  const std::size_t at = input.byte() % 2 ? input.byte() % 112U : input.get<std::uint16_t>() % kCount;
  words[at] = static_cast<std::uint32_t>(word(input));
}

void change_chunk(PeerMemory& memory, Input& input) {
  const unsigned section = input.byte() % kPeerSections;
  std::byte* const chunk = memory.find(section, 0);
  if (!chunk) return;
  const std::uint64_t written = word(input);
  const std::size_t words = chunks().bytes(section, 0) / sizeof written;
  std::memcpy(chunk + input.get<std::uint16_t>() % words * sizeof written, &written, sizeof written);
}

void in_memory(std::uint8_t kind, Input& input) {
  const AddressVectorOptions options = options_of(kind);
  auto made = std::make_unique<FuzzedMemory>(kind);
  FuzzedMemory& memory = *made;
  AddressVector vector(options, std::move(made));
  const int known = kind >> 3 & 7;
  for (int i = 0; i < known; ++i) vector.insert(address_of(vector, i));
  for (int acts = 0; acts < 64 && !input.empty(); ++acts) {
    const std::uint8_t act = input.byte();
    if (act < 64)
      change(memory.header(), input);
    else if (act < 96)
      change_chunk(memory, input);
    else
      use(vector, input);
  }
}

// A file that is in use by another process, which holds the lock that says so until this one ends.
class UsedFile {
 public:
  UsedFile() : path_(named_vector_path(name)) {
    ::unlink(path_.c_str());
    file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    check_call(file_.get(), "open");
    check_call(::ftruncate(file_.get(), kBytes), "ftruncate");
    written_ = Mapping::shared(file_.get(), 0, kBytes);
    int told[2];
    check_call(::pipe2(told, O_CLOEXEC), "pipe2");
    if (::fork() == 0) hold(told[1]);
    char locked;
    check_call(static_cast<int>(::read(told[0], &locked, 1)), "read");
  }
  ~UsedFile() { ::unlink(path_.c_str()); }

  // As a writer would leave it, but for what the input changes.
  void write(std::uint8_t kind, Input& input) {
    auto header = std::make_unique<PeerHeader>();
    describe(*header, options_of(kind));
    header->magic = kPeerMagic;
    header->file_length = kBytes;
    for (int changes = input.byte() % 16; changes > 0; --changes) {
      if (input.byte() % 2)
        change(*header, input);
      else
        header->extents[input.byte() % kPeerSections][input.byte() % 4] =
            input.byte() % 2 ? 12288 + 4096 * (input.byte() % 8) : word(input);
    }
    if (input.byte() % 8 == 0) header->version = input.byte();
    std::byte* const bytes = written_.data();
    std::memcpy(bytes, header.get(), sizeof *header);
    std::memset(bytes + 12288, 0, kBytes - 12288);
    const auto given = input.take(256);
    std::memcpy(bytes + 12288 + input.byte() % 8 * 4096, given.data(), given.size());
    check_call(::ftruncate(file_.get(), kBytes), "ftruncate");
  }
  const VectorName name{.domain = "fuzzed", .name = std::to_string(::getpid())};

 private:
  static constexpr off_t kBytes = 12288 + 8 * 4096;
  [[noreturn]] void hold(int told) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct flock lock{};
    lock.l_type = F_RDLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = 1;  // the byte of those who have the file open
    lock.l_len = 1;
    if (::fcntl(file_.get(), F_SETLK, &lock) != 0 || ::write(told, "", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  const std::string path_;
  OwnFd file_;
  Mapping written_;
};

void in_a_file(std::uint8_t kind, Input& input) {
  static UsedFile file;
  file.write(kind, input);
  may_refuse([&] {
    const AddressVectorOptions options = options_of(kind);
    AddressVector vector(options, open_named_peer_memory(file.name, options));
    for (int acts = 0; acts < 32 && !input.empty(); ++acts) use(vector, input);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::uint8_t where = input.byte(), kind = input.byte();
  if (where < 240)
    in_memory(kind, input);
  else
    in_a_file(kind, input);
  return 0;
}
