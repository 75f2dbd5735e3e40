#include "base/crypto/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/bytes/random.h"
#include "base/bytes/sha256.h"
#include "base/locks/fork_gate.h"

namespace fab {
namespace {

using Bytes = LibSsl::Bytes;

// All of them hash with SHA-256, because an external key goes with one hash (RFC 8446, 4.2.11).
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr Bytes kFirstSuite[] = {0x13, 0x01};
constexpr std::size_t kNonce = 16;
constexpr std::size_t kRecordOverhead = 256;                 // more than any record adds
constexpr std::size_t kMostSealed = 256 * 1024;              // bytes that wait for the socket
constexpr std::size_t kWorthACall = 4 * Tls::kMostInRecord;  // so many are worth a system call
// What one call sends of full records, each with a header, a byte of type and a tag, is read by one call; the
// library leaves the first three bytes of its memory out. With more or less, each read would cut a record,
// and the library would move its beginning.
constexpr std::size_t kReadAtOnce = kWorthACall / Tls::kMostInRecord * (Tls::kMostInRecord + 5 + 1 + 16) + 3;
constexpr std::uint64_t kRecordsOfKey = 1ull << 23;  // AES-GCM seals at most 2^24.5 (RFC 8446, 5.5)
// Reasons of errors: 1000 and the number of an alert that the other end has sent.
constexpr unsigned long kReasonMask = 0xfff, kHandshakeFailure = 1040, kUnknownIdentity = 1115;
constexpr std::string_view kExporterLabel = "EXPORTER-pyfab handshake";

std::string_view bytes_of_digest(const Digest& digest) noexcept {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The key of the connection, and the one that its name is made with. Neither says anything of the other, nor
// of the secret.
Digest session_key(const std::string& secret) { return hmac_sha256(secret, "pyfab 3 key of tls"); }
Digest name_under(const std::string& secret, std::string_view nonce) {
  return hmac_sha256(bytes_of_digest(hmac_sha256(secret, "pyfab 3 names of keys of tls")), nonce);
}

// Does what recv() does, without waiting, and goes on after a signal.
ssize_t receive(int socket, char* out, std::size_t count) noexcept {
  ssize_t got;
  do got = ::recv(socket, out, count, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  return got;
}

// Around calls of the library, which keeps errors per thread: other users of it shall not find ours there.
class QuietLibSsl {
 public:
  QuietLibSsl() { libssl()->set_error_mark(); }
  ~QuietLibSsl() { libssl()->pop_errors_to_mark(); }
  QuietLibSsl(const QuietLibSsl&) = delete;
  QuietLibSsl& operator=(const QuietLibSsl&) = delete;
};

LibSsl::Session* session_of(LibSsl::Stream* stream, const std::string& secret) {
  const LibSsl& library = *libssl();
  LibSsl::Session* const session = library.new_session();
  if (!session) return nullptr;
  const Digest key = session_key(secret);
  const LibSsl::Cipher* const suite = library.find_cipher(stream, kFirstSuite);
  if (suite && library.set_session_key(session, key.data(), key.size()) == 1 &&
      library.set_session_cipher(session, suite) == 1 &&
      library.set_session_version(session, LibSsl::kTls13) == 1)
    return session;
  library.free_session(session);
  return nullptr;
}

}  // namespace

// What the library calls. None of it throws into the library.
struct Tls::Callbacks {
  static Tls& owner(LibSsl::Stream* stream) noexcept {
    return *static_cast<Tls*>(libssl()->get_data(stream, 0));
  }

  static int use_key(LibSsl::Stream* stream, const LibSsl::Digest*, const Bytes** name, std::size_t* length,
                     LibSsl::Session** session) noexcept try {
    Tls& tls = owner(stream);
    *session = session_of(stream, tls.secrets_.front());
    *name = reinterpret_cast<const Bytes*>(tls.identity_.data());
    *length = tls.identity_.size();
    return *session != nullptr;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  static int find_key(LibSsl::Stream* stream, const Bytes* name, std::size_t length,
                      LibSsl::Session** session) noexcept try {
    Tls& tls = owner(stream);
    *session = nullptr;
    Digest shown;
    if (length == kNonce + shown.size()) {
      const std::string_view nonce(reinterpret_cast<const char*>(name), kNonce);
      std::memcpy(shown.data(), name + kNonce, shown.size());
      for (const std::string& secret : tls.secrets_)
        if (same(shown, name_under(secret, nonce))) {
          *session = session_of(stream, secret);
          return *session != nullptr;
        }
    }
    tls.refused_ = true;
    return 1;  // without a key there is nothing else to go on with
  } catch (const std::bad_alloc&) {
    return 0;
  }

  static int read(LibSsl::Bio* bio, char* out, int count) noexcept {
    return static_cast<Tls*>(libssl()->get_bio_data(bio))->take(out, count);
  }
  static int write(LibSsl::Bio* bio, const char* bytes, int count) noexcept {
    return static_cast<Tls*>(libssl()->get_bio_data(bio))->keep(bytes, count);
  }
  static long control(LibSsl::Bio*, int command, long, void*) noexcept { return command == LibSsl::kFlush; }

  // Made once, and never freed.
  static LibSsl::Settings* settings();
  static const LibSsl::BioMethod* method();
};

LibSsl::Settings* Tls::Callbacks::settings() {
  static LibSsl::Settings* const made = [] {
    const LibSsl& library = *libssl();
    LibSsl::Settings* const settings = library.new_settings(library.method());
    if (!settings) throw std::bad_alloc();
    library.control(settings, LibSsl::kSetLeast, LibSsl::kTls13, nullptr);
    library.control(settings, LibSsl::kSetMost, LibSsl::kTls13, nullptr);
    library.control(settings, LibSsl::kSetCacheMode, 0, nullptr);
    library.set_tickets(settings, 0);
    library.on_use(settings, &use_key);
    library.on_find(settings, &find_key);
    if (library.set_cipher_suites(settings, kSuites) != 1) throw std::bad_alloc();
    return settings;
  }();
  return made;
}

const LibSsl::BioMethod* Tls::Callbacks::method() {
  static const LibSsl::BioMethod* const made = [] {
    const LibSsl& library = *libssl();
    LibSsl::BioMethod* const method = library.new_bio_method(LibSsl::kSourceSink | 127, "pyfab socket");
    if (!method) throw std::bad_alloc();
    library.set_bio_read(method, &read);
    library.set_bio_write(method, &write);
    library.set_bio_control(method, &control);
    return method;
  }();
  return made;
}

Tls::Tls(int socket, std::vector<std::string> secrets) : socket_(socket), secrets_(std::move(secrets)) {
  const LibSsl& library = *libssl();
  const ForkGate gate;
  const QuietLibSsl quiet;
  bio_ = library.new_bio(Callbacks::method());
  if (!bio_) throw std::bad_alloc();
  library.set_bio_data(bio_, this);
  library.set_bio_ready(bio_, 1);
  stream_ = library.new_stream(Callbacks::settings());
  if (!stream_) throw std::bad_alloc();
  library.set_data(stream_, 0, this);
  library.set_bio(stream_, bio_, bio_);
}

std::unique_ptr<Tls> Tls::call(int socket, const std::string& secret) {
  std::unique_ptr<Tls> tls(new Tls(socket, {secret}));
  char nonce[kNonce];
  fill_random(nonce, sizeof nonce);
  tls->identity_.assign(nonce, sizeof nonce);
  tls->identity_ += bytes_of_digest(name_under(secret, {nonce, sizeof nonce}));
  libssl()->set_verify(tls->stream_, LibSsl::kVerifyPeer, nullptr);  // no certificate is trusted
  libssl()->calls(tls->stream_);
  return tls;
}

std::unique_ptr<Tls> Tls::answer(int socket, std::vector<std::string> secrets) {
  std::unique_ptr<Tls> tls(new Tls(socket, std::move(secrets)));
  libssl()->answers(tls->stream_);
  return tls;
}

Tls::~Tls() { libssl()->free_stream(stream_); }

// Whether the socket has more.
bool Tls::look() noexcept {
  const ssize_t got = receive(socket_, first_.data(), first_.size());
  dry_ = std::cmp_less(got, first_.size());
  if (got > 0) {
    first_taken_ = 0;
    first_come_ = static_cast<std::size_t>(got);
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
    ended_ = Step::gone;
  }
  return got > 0;
}

int Tls::take(char* out, int count) noexcept {
  const LibSsl& library = *libssl();
  library.clear_bio_flags(bio_, LibSsl::kRetryFlags);
  if (first_taken_ != first_come_) {
    const std::size_t part = std::min(static_cast<std::size_t>(count), first_come_ - first_taken_);
    std::memcpy(out, first_.data() + first_taken_, part);
    first_taken_ += part;
    return static_cast<int>(part);
  }
  const auto retry = [&] {
    dry_ = true;
    library.set_bio_flags(bio_, LibSsl::kRead | LibSsl::kShouldRetry);
    return -1;
  };
  if (dry_) return retry();
  const ssize_t got = receive(socket_, out, static_cast<std::size_t>(count));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return retry();
  if (got <= 0) {
    ended_ = Step::gone;
    return static_cast<int>(got);
  }
  if (!handshaking_) {
    dry_ = got < count;
    return static_cast<int>(got);
  }
  heard_ += static_cast<std::size_t>(got);
  if (heard_ > kMostOfHandshake) {
    ended_ = Step::nonsense;
    return -1;
  }
  return static_cast<int>(got);
}

int Tls::keep(const char* bytes, int count) noexcept try {
  libssl()->clear_bio_flags(bio_, LibSsl::kRetryFlags);
  sealed_.insert(sealed_.end(), bytes, bytes + count);
  return count;
} catch (const std::bad_alloc&) {
  out_of_memory_ = true;
  return -1;
}

Tls::Step Tls::failure() noexcept {
  if (libssl()->test_bio_flags(bio_, LibSsl::kShouldRetry) && !ended_) return Step::again;
  if (out_of_memory_) return Step::no_memory;
  if (refused_) return Step::key_rejected;
  if (ended_) return *ended_;
  const unsigned long reason = libssl()->last_error() & kReasonMask;
  return reason == kHandshakeFailure || reason == kUnknownIdentity ? Step::key_rejected : Step::nonsense;
}

Tls::Step Tls::handshake() noexcept {
  const LibSsl& library = *libssl();
  const ForkGate gate;
  const QuietLibSsl quiet;
  begin_round();
  library.clear_bio_flags(bio_, LibSsl::kRetryFlags);
  const int outcome = library.handshake(stream_);
  const Step step = outcome == 1 ? Step::done : failure();
  const bool pushed = push();  // an alert, too
  if (step != Step::done) return step;
  if (!pushed) return Step::gone;
  if (!library.key_was_used(stream_)) return Step::key_rejected;
  for (std::string& secret : secrets_) ::explicit_bzero(secret.data(), secret.size());
  secrets_.clear();
  handshaking_ = false;
  return Step::done;
}

std::array<std::uint8_t, 32> Tls::binding() const {
  std::array<std::uint8_t, 32> out;
  const ForkGate gate;
  const QuietLibSsl quiet;
  if (libssl()->export_key(stream_, out.data(), out.size(), kExporterLabel.data(), kExporterLabel.size(),
                           nullptr, 0, 0) != 1)
    throw std::bad_alloc();
  return out;
}

bool Tls::room() const noexcept {
  return sealed_.size() - sent_ + kMostInRecord + kRecordOverhead <= kMostSealed;
}

// The sender of a direction decides when its key has sealed enough; the other end follows by itself.
bool Tls::renew_key() noexcept {
  if (++records_ < kRecordsOfKey) return true;
  records_ = 0;
  return libssl()->update_key(stream_, LibSsl::kUpdateNotRequested) == 1;
}

bool Tls::seal(const std::byte* bytes, std::size_t count) noexcept {
  const QuietLibSsl quiet;
  if (!renew_key()) return false;
  if (libssl()->write(stream_, bytes, static_cast<int>(count)) != static_cast<int>(count)) return false;
  return sealed_.size() - sent_ < kWorthACall || push();
}

bool Tls::push() noexcept {
  while (unsent()) {
    const auto taken =
        ::send(socket_, sealed_.data() + sent_, sealed_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken >= 0) {
      sent_ += static_cast<std::size_t>(taken);
      handed_ += static_cast<std::size_t>(taken);
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      break;
    } else if (errno != EINTR) {
      return false;
    }
  }
  if (sent_ >= sealed_.size() - sent_)  // so that what is moved was sent at least once
    sealed_.erase(sealed_.begin(), sealed_.begin() + static_cast<std::ptrdiff_t>(std::exchange(sent_, 0)));
  return true;
}

std::size_t Tls::open(std::byte* out) noexcept {
  if (ended_) return 0;
  const LibSsl& library = *libssl();
  if (first_taken_ == first_come_ && !library.has_pending(stream_) && (dry_ || (reads_ahead_ && !look())))
    return 0;
  const QuietLibSsl quiet;
  library.clear_bio_flags(bio_, LibSsl::kRetryFlags);
  const int got = library.read(stream_, out, static_cast<int>(kMostInRecord));
  if (got > 0) return static_cast<std::size_t>(got);
  if (const Step step = failure(); step != Step::again) ended_ = step;
  return 0;
}

void Tls::read_ahead() noexcept {
  libssl()->set_read_buffer(stream_, kReadAtOnce);
  libssl()->set_read_ahead(stream_, 1);
  reads_ahead_ = true;
}

}  // namespace fab
