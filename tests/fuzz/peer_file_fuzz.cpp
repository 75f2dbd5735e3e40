#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

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
  std::memcpy(chunk + input.get<std::uint16_t>() % 511 * 8, &written, sizeof written);
}

AddressVectorOptions options_of(std::uint8_t kind) {
  const bool sockets = kind % 2 != 0;
  return {.format = sockets ? AddressFormat::sockaddr_in : AddressFormat::bundle,
          .symmetric = sockets,
          .user_ids = (kind & 2) != 0,
          .reject_duplicates = (kind & 4) != 0};
}

void in_memory(std::uint8_t kind, Input& input) {
  OpenVector open(options_of(kind));
  const int known = kind >> 3 & 7;
  for (int i = 0; i < known; ++i) open.vector.insert(address_of(open.vector, i));
  for (int acts = 0; acts < 64 && !input.empty(); ++acts) {
    const std::uint8_t act = input.byte();
    if (act < 64)
      change(open.memory.header(), input);
    else if (act < 96)
      change_chunk(open.memory, input);
    else
      use(open.vector, input);
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
    check_call(static_cast<int>(::pwrite(file_.get(), header.get(), sizeof *header, 0)), "pwrite");
    std::string chunks(kBytes - 12288, '\0');
    const auto given = input.take(256);
    given.copy(chunks.data() + input.byte() % 8 * 4096, given.size());
    check_call(static_cast<int>(::pwrite(file_.get(), chunks.data(), chunks.size(), 12288)), "pwrite");
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
