#include "fabric/address_vector/named_peer_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <map>
#include <vector>

#include "base/bytes/sha256.h"
#include "base/fd.h"
#include "base/locks/mutex.h"
#include "base/process/process.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab {
namespace {

constexpr const char* kFolder = "/dev/shm";
constexpr std::uint64_t kMostAtOnce = 256 << 20;

// Record locks of fcntl(2), each on one byte of the file. They belong to the process: the kernel releases
// them when the process ends, however it ends, and nothing in the file has to be trusted for that.
enum class Byte : off_t {
  writing,  // held while something is inserted or removed
  present,  // held for reading by everybody who has the file open
  opening,  // held to open and to leave
};

bool set_lock(int fd, Byte byte, short type, bool wait) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  while (::fcntl(fd, wait ? F_SETLKW : F_SETLK, &lock) != 0) {
    if (errno == EDEADLK)
      ::sched_yield();  // the kernel takes two processes with threads for a deadlock; no lock is held for
                        // long
    else if (errno != EINTR)
      return false;
  }
  return true;
}

// Whether another process has the file open.
bool others_present(int fd) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(Byte::present);
  lock.l_len = 1;
  return ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string prefix() { return "pyfab-av-" + std::to_string(::geteuid()) + "-"; }

// A file that this process has open once, however many vectors use it: closing any descriptor of a file would
// end all locks of the process on it.
struct OpenFile {
  std::string path;
  OwnFd fd;
  dev_t device = 0;
  ino_t inode = 0;
  Mutex writing;  // among the threads of this process
  unsigned users = 0;
};

struct OpenFiles {
  Mutex mutex;
  std::uint32_t fork_generation FAB_GUARDED_BY(mutex) = 0;
  std::map<std::string, std::unique_ptr<OpenFile>> files FAB_GUARDED_BY(mutex);
};

OpenFiles& open_files() {
  static auto* const all = new OpenFiles;  // vectors may outlive every static object
  return *all;
}

// A child of fork() has no locks. The files that it inherited are the parent's, and are neither closed nor
// removed here.
void forget_inherited(OpenFiles& all) FAB_REQUIRES(all.mutex) {
  if (all.fork_generation == fork_generation()) return;
  for (auto& [path, file] : all.files) {
    file->fd.release();
    [[maybe_unused]] auto* const kept = file.release();
  }
  all.files.clear();
  all.fork_generation = fork_generation();
}

bool same_file(int fd, const std::string& path) noexcept {
  struct stat open{}, named{};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

// Anybody may make files in the folder, under any name, and nobody may remove those of others (its sticky
// bit). So a file that is not this user's alone is refused, and only its owner can give the name free.
[[noreturn]] void refuse_file(const std::string& path, const struct stat& status, const char* why) {
  const bool ours = status.st_uid == ::geteuid();
  throw Error(Errc::access, path + ", which keeps this address vector, " + why + "; it belongs to user " +
                                std::to_string(status.st_uid) + (ours ? " as this process does" : "") + ": " +
                                (ours ? "remove it" : "have that user or root remove it") +
                                ", or choose another name for the vector");
}

void check_owner(int fd, const std::string& path) {
  struct stat status{};
  check_call(::fstat(fd, &status), "fstat");
  if (!S_ISREG(status.st_mode)) refuse_file(path, status, "is no file");
  if (status.st_uid != ::geteuid()) refuse_file(path, status, "is another user's");
  if ((status.st_mode & 077) != 0) refuse_file(path, status, "is open to other users");
  // Under a second name it would be a file of this user that is something else.
  if (status.st_nlink > 1) refuse_file(path, status, "is linked under another name too");
}

// Opens the file, or makes it. Not valid: there is none, and none is to be made.
OwnFd open_or_make(const std::string& path, bool make) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  for (;;) {
    OwnFd fd(::open(path.c_str(), kFlags));
    if (!fd.valid() && errno == ENOENT && make) {
      fd.reset(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
      if (!fd.valid() && errno == EEXIST) continue;  // another process was faster
    }
    const int error = errno;
    if (fd.valid() || error == ENOENT) return fd;
    struct stat status{};
    if (::lstat(path.c_str(), &status) == 0 && !is_shortage(error))
      refuse_file(path, status, S_ISLNK(status.st_mode) ? "is a symbolic link" : "cannot be opened");
    throw std::system_error(error, std::generic_category(), "open " + path);
  }
}

struct CloseFolder {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};

// Removes the files of processes that died.
void remove_stale(OpenFiles& all) FAB_REQUIRES(all.mutex) {
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir(kFolder));
  if (!folder) return;
  const std::string wanted = prefix();
  while (const dirent* item = ::readdir(folder.get())) {
    const std::string path = std::string(kFolder) + "/" + item->d_name;
    if (!std::string_view(item->d_name).starts_with(wanted) || all.files.contains(path)) continue;
    const OwnFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status{};
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    if (set_lock(fd.get(), Byte::opening, F_WRLCK, false) && !others_present(fd.get()) &&
        same_file(fd.get(), path))
      ::unlink(path.c_str());
  }
}

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}
std::size_t header_bytes() noexcept { return round_up(sizeof(PeerHeader), page_size()); }

std::uint64_t length_of(int fd) noexcept {
  struct stat status{};
  return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

void reserve(int fd, std::uint64_t from, std::uint64_t bytes) {
  // Allocates the pages too: one that cannot be had later would end the process (SIGBUS).
  if (const int error = ::posix_fallocate(fd, static_cast<off_t>(from), static_cast<off_t>(bytes));
      error != 0)
    throw Error(Errc::no_memory, "cannot enlarge the address vector by " + std::to_string(bytes) +
                                     " bytes in " + kFolder + ": " + std::generic_category().message(error));
}

void initialise(PeerHeader& header, const VectorName& name, const AddressVectorOptions& options) {
  describe(header, options);
  header.map_address =
      name.map_address ? name.map_address : (std::uint64_t{1} << 44) | ((header.seed & 0xffff) << 24);
  header.file_length.store(header_bytes(), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = kPeerMagic;
}

// Looks at the file of a vector that others have open, before any of it is taken for a PeerHeader.
void check_version(int fd, const VectorName& name) {
  struct {
    std::uint64_t magic, seed;
    std::uint32_t version;
  } first{};
  const bool read = ::pread(fd, &first, sizeof first, 0) == static_cast<ssize_t>(sizeof first);
  const std::string which = "the address vector \"" + name.name + "\" ";
  if (!read || first.magic != kPeerMagic) throw Error(Errc::invalid, which + "is damaged");
  if (first.version != versions::kPeerFile)
    throw Error(Errc::invalid, which + "is of version " + std::to_string(first.version) +
                                   ", and this library has version " + std::to_string(versions::kPeerFile) +
                                   "; use the same version of pyfab in all processes, or another name");
  if (length_of(fd) < header_bytes()) throw Error(Errc::invalid, which + "is damaged");
}

void check(const PeerHeader& header, const VectorName& name, const AddressVectorOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::invalid, "the address vector \"" + name.name + "\" " + why);
  };
  if (header.type != options.type) refuse("was made with another type (AVType)");
  if (header.format != static_cast<std::uint32_t>(options.format)) refuse("was made for another addr_format");
  if (header.rx_bits != options.rx_bits)
    refuse("was made with rx_ctx_bits=" + std::to_string(header.rx_bits) + ", not " +
           std::to_string(options.rx_bits));
  if ((header.user_ids != 0) != options.user_ids) refuse("was made with another user_id");
  // A damaged header may count more peers than there is room for, and a search of them would take for ever.
  std::uint64_t room = 0;
  for (const PeerRun& run : header.run)
    room =
        std::max(room, run.first.load(std::memory_order_relaxed) + run.count.load(std::memory_order_relaxed));
  for (unsigned chunk = 0; chunk < kPeerChunks; ++chunk)
    if (header.extents[0][chunk].load(std::memory_order_relaxed) != 0)
      room = std::max(room, PeerColumn<PeerEntry, PeerSection::entries>::start_of(chunk + 1));
  if (header.used.load(std::memory_order_relaxed) > std::min(room, kMaxPeers)) refuse("is damaged");
}

class NamedPeerMemory final : public PeerMemory {
 public:
  NamedPeerMemory(const VectorName& name, const AddressVectorOptions& options) : writable_(!name.read_only) {
    OpenFiles& all = open_files();
    const LockGuard lock(all.mutex);
    forget_inherited(all);
    const std::string path = named_vector_path(name);
    const auto found = all.files.find(path);
    if (found != all.files.end()) {
      file_ = found->second.get();
      map_header();
      check(header(), name, options);
    } else {
      if (!name.read_only) remove_stale(all);
      auto file = open(path, name, options);
      file_ = all.files.emplace(path, std::move(file)).first->second.get();
    }
    ++file_->users;
  }

  ~NamedPeerMemory() override {
    if (fork_generation_ != fork_generation()) return;
    OpenFiles& all = open_files();
    const LockGuard lock(all.mutex);
    const LockGuard not_writing(file_->writing);
    if (--file_->users != 0) return;
    // The last process removes the file. Another one that opens it meanwhile waits for this lock, and then
    // finds that the file is gone.
    set_lock(file_->fd.get(), Byte::opening, F_WRLCK, true);
    if (set_lock(file_->fd.get(), Byte::present, F_WRLCK, false) && same_file(file_->fd.get(), file_->path))
      ::unlink(file_->path.c_str());
    closing_ = std::move(all.files.at(file_->path));
    all.files.erase(file_->path);
  }

  bool writable() const noexcept override { return writable_; }

 private:
  std::unique_ptr<OpenFile> open(const std::string& path, const VectorName& name,
                                 const AddressVectorOptions& options) {
    for (;;) {
      auto file = std::make_unique<OpenFile>();
      file->path = path;
      file->fd = open_or_make(path, !name.read_only);
      if (!file->fd.valid())
        throw Error(Errc::not_found, "there is no address vector \"" + name.name + "\" of this domain here");
      const int fd = file->fd.get();
      check_owner(fd, path);
      if (!set_lock(fd, Byte::opening, F_WRLCK, true))
        throw Error(Errc::no_memory, path + ": the system has no more locks");
      if (!same_file(fd, path)) continue;  // it was removed meanwhile
      file_ = file.get();
      const bool stale = !others_present(fd);
      if (stale && name.read_only) {
        ::unlink(path.c_str());
        throw Error(Errc::not_found, "there is no address vector \"" + name.name + "\" of this domain here");
      }
      if (stale) {
        check_call(::ftruncate(fd, 0), "ftruncate");
        reserve(fd, 0, header_bytes());
      }
      if (!stale) check_version(fd, name);
      map_header();
      if (stale) initialise(header(), name, options);
      check(header(), name, options);
      set_lock(fd, Byte::present, F_RDLCK, true);
      set_lock(fd, Byte::opening, F_UNLCK, true);
      return file;
    }
  }

  void map_header() {
    header_mapping_ = Mapping::shared(file_->fd.get(), 0, header_bytes(), writable_);
    header_ = reinterpret_cast<PeerHeader*>(header_mapping_.data());
  }

  void lock() override FAB_ACQUIRE() {
    file_->writing.lock();
    if (set_lock(file_->fd.get(), Byte::writing, F_WRLCK, true)) return;
    file_->writing.unlock();
    throw Error(Errc::no_memory, "the system has no more file locks");
  }
  void unlock() noexcept override FAB_RELEASE() {
    set_lock(file_->fd.get(), Byte::writing, F_UNLCK, true);
    file_->writing.unlock();
  }

  // Bytes of a chunk in the file: the first chunks of all sections fit into a page (PeerColumn::kFirstBits).
  static std::size_t bytes_of(unsigned chunk) noexcept { return std::size_t{4096} << chunk; }

  std::byte* attach(unsigned section, unsigned chunk) const noexcept override {
    const std::uint64_t at = header_->extents[section][chunk].load(std::memory_order_acquire);
    if (at == 0) return nullptr;
    const std::uint64_t length = length_of(file_->fd.get());
    if (at < header_bytes() || at % page_size() != 0 || at > length || bytes_of(chunk) > length - at)
      return nullptr;
    const LockGuard lock(mapping_);
    return map(section, chunk, at);
  }

  std::byte* create(unsigned section, unsigned chunk, std::size_t) override FAB_REQUIRES(this) {
    if (chunk >= kPeerChunks) throw Error(Errc::no_memory, "the address vector is full");
    const std::size_t bytes = bytes_of(chunk);
    const int fd = file_->fd.get();
    if (bytes > std::max(kMostAtOnce, 2 * length_of(fd)))  // only a damaged header asks for that
      throw Error(Errc::bad_state, "the address vector is damaged");
    const std::uint64_t at = round_up(std::max<std::uint64_t>(length_of(fd), header_bytes()), page_size());
    reserve(fd, at, bytes);
    header_->file_length.store(at + bytes, std::memory_order_relaxed);
    const LockGuard lock(mapping_);
    std::byte* made = map(section, chunk, at);
    if (!made) throw Error(Errc::no_memory, "cannot map the address vector");
    header_->extents[section][chunk].store(at, std::memory_order_release);
    return made;
  }

  std::byte* map(unsigned section, unsigned chunk, std::uint64_t at) const noexcept
      FAB_REQUIRES(mapping_) try {
    chunks_.push_back(Mapping::shared(file_->fd.get(), at, bytes_of(chunk), writable_));
    set(section, chunk, chunks_.back().data());
    return chunks_.back().data();
  } catch (const std::exception&) {
    return nullptr;
  }

  const bool writable_;
  const std::uint32_t fork_generation_ = fab::fork_generation();
  OpenFile* file_ = nullptr;
  std::unique_ptr<OpenFile> closing_;  // closed once all is unmapped
  Mapping header_mapping_;
  mutable Mutex mapping_;
  mutable std::list<Mapping> chunks_ FAB_GUARDED_BY(mapping_);
};

}  // namespace

std::string named_vector_path(const VectorName& name) {
  const Digest digest = sha256(name.domain + std::string(1, '\0') + name.name);
  std::string text;
  for (std::size_t i = 0; i < 16; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return std::string(kFolder) + "/" + prefix() + text;
}

std::unique_ptr<PeerMemory> open_named_peer_memory(const VectorName& name,
                                                   const AddressVectorOptions& options) {
  return std::make_unique<NamedPeerMemory>(name, options);
}

}  // namespace fab
