#include "base/crypto/tls_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/bytes/random.h"
#include "base/locks/fork_gate.h"

namespace fab {
namespace {

using Bytes = LibSsl::Bytes;

// It hashes with SHA-256, as an external key goes with one hash (RFC 8446, 4.2.11). It is the one that every
// TLS 1.3 has (9.1), and the only one that is offered.
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256";
constexpr Bytes kFirstSuite[] = {0x13, 0x01};
constexpr std::size_t kNonce = 16;
// Reasons of errors: 1000 and the number of an alert that the other end has sent.
constexpr unsigned long kReasonMask = 0xfff, kHandshakeFailure = 1040, kUnknownIdentity = 1115;
constexpr std::string_view kExporterLabel = "EXPORTER-pyfab handshake";
constexpr std::string_view kCallersSecret = "CLIENT_TRAFFIC_SECRET_0 ",
                           kCalledSecret = "SERVER_TRAFFIC_SECRET_0 ";

std::string_view bytes_of_digest(const Digest& digest) noexcept {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The key of the connection, and the one that its name is made with. Neither says anything of the other, nor
// of the secret.
Digest session_key(const std::string& secret) { return hmac_sha256(secret, "pyfab 3 key of tls"); }
Digest name_under(const std::string& secret, std::string_view nonce) {
  return hmac_sha256(bytes_of_digest(hmac_sha256(secret, "pyfab 3 names of keys of tls")), nonce);
}

LibSsl::Session* session_of(LibSsl::Stream* stream, const std::string& secret) {
  const LibSsl& library = *libssl();
  LibSsl::Session* const session = library.new_session();
  if (!session) return nullptr;
  const Digest key = session_key(secret);
  const LibSsl::Suite* const suite = library.find_suite(stream, kFirstSuite);
  if (suite && library.set_session_key(session, key.data(), key.size()) == 1 &&
      library.set_session_suite(session, suite) == 1 &&
      library.set_session_version(session, LibSsl::kTls13) == 1)
    return session;
  library.free_session(session);
  return nullptr;
}

}  // namespace

// What the library calls. None of it throws into the library.
struct TlsHandshake::Callbacks {
  static TlsHandshake& owner(const LibSsl::Stream* stream) noexcept {
    return *static_cast<TlsHandshake*>(libssl()->get_data(stream, 0));
  }

  static int use_key(LibSsl::Stream* stream, const LibSsl::Digest*, const Bytes** name, std::size_t* length,
                     LibSsl::Session** session) noexcept try {
    TlsHandshake& tls = owner(stream);
    *session = session_of(stream, tls.secrets_.front());
    *name = reinterpret_cast<const Bytes*>(tls.identity_.data());
    *length = tls.identity_.size();
    return *session != nullptr;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  static int find_key(LibSsl::Stream* stream, const Bytes* name, std::size_t length,
                      LibSsl::Session** session) noexcept try {
    TlsHandshake& tls = owner(stream);
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
    return static_cast<TlsHandshake*>(libssl()->get_bio_data(bio))->take(out, count);
  }
  static int write(LibSsl::Bio* bio, const char* bytes, int count) noexcept {
    return static_cast<TlsHandshake*>(libssl()->get_bio_data(bio))->keep(bytes, count);
  }
  static long control(LibSsl::Bio*, int command, long, void*) noexcept { return command == LibSsl::kFlush; }

  static void secret(const LibSsl::Stream* stream, const char* line) noexcept {
    owner(stream).note_secret(line);
  }

  // Made once, and never freed.
  static LibSsl::Settings* settings();
  static const LibSsl::BioMethod* method();
};

LibSsl::Settings* TlsHandshake::Callbacks::settings() {
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
    library.on_secret(settings, &secret);
    if (library.set_cipher_suites(settings, kSuites) != 1) throw std::bad_alloc();
    return settings;
  }();
  return made;
}

const LibSsl::BioMethod* TlsHandshake::Callbacks::method() {
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

TlsHandshake::TlsHandshake(int socket, Part part, std::vector<std::string> secrets, ByteBuffer& out)
    : socket_(socket), part_(part), secrets_(std::move(secrets)), out_(out) {
  if (part == Part::calls) {
    char nonce[kNonce];
    fill_random(nonce, sizeof nonce);
    identity_.assign(nonce, sizeof nonce);
    identity_ += bytes_of_digest(name_under(secrets_.front(), {nonce, sizeof nonce}));
  }
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
  if (part == Part::answers) {
    library.answers(stream_);
  } else {
    library.set_verify(stream_, LibSsl::kVerifyPeer, nullptr);  // no certificate is trusted
    library.calls(stream_);
  }
}

TlsHandshake::~TlsHandshake() {
  libssl()->free_stream(stream_);
  for (std::string& secret : secrets_) ::explicit_bzero(secret.data(), secret.size());
  for (Digest* const secret : {&outcome_.ours, &outcome_.theirs})
    ::explicit_bzero(secret->data(), secret->size());
}

int TlsHandshake::take(char* out, int count) noexcept {
  const LibSsl& library = *libssl();
  library.clear_bio_flags(bio_, LibSsl::kRetryFlags);
  ssize_t got;
  do got = ::recv(socket_, out, static_cast<std::size_t>(count), MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    library.set_bio_flags(bio_, LibSsl::kRead | LibSsl::kShouldRetry);
    return -1;
  }
  gone_ = got <= 0;
  if (gone_) return static_cast<int>(got);
  heard_ += static_cast<std::size_t>(got);
  too_much_ = heard_ > kMostHeard;
  return too_much_ ? -1 : static_cast<int>(got);
}

int TlsHandshake::keep(const char* bytes, int count) noexcept try {
  libssl()->clear_bio_flags(bio_, LibSsl::kRetryFlags);
  out_.append(bytes, static_cast<std::size_t>(count));
  return count;
} catch (const std::bad_alloc&) {
  out_of_memory_ = true;
  return -1;
}

// A line for programs that look into connections: what the secret is for, whose connection it is, and the
// secret, in hexadecimal digits.
void TlsHandshake::note_secret(const char* line) noexcept {
  const std::string_view text(line);
  const bool callers = text.starts_with(kCallersSecret);
  if (!callers && !text.starts_with(kCalledSecret)) return;
  Digest& secret = callers == (part_ == Part::calls) ? outcome_.ours : outcome_.theirs;
  if (text.size() < 2 * secret.size()) return;
  const char* at = text.data() + text.size() - 2 * secret.size();
  for (std::uint8_t& byte : secret) {
    if (std::from_chars(at, at + 2, byte, 16).ptr != at + 2) return;
    at += 2;
  }
  noted_ |= callers ? 1U : 2U;
}

TlsStep TlsHandshake::failure() noexcept {
  if (libssl()->test_bio_flags(bio_, LibSsl::kShouldRetry)) return TlsStep::again;
  if (out_of_memory_) return TlsStep::no_memory;
  if (refused_) return TlsStep::key_rejected;
  if (gone_) return TlsStep::gone;
  if (too_much_) return TlsStep::nonsense;
  const unsigned long reason = libssl()->last_error() & kReasonMask;
  return reason == kHandshakeFailure || reason == kUnknownIdentity ? TlsStep::key_rejected
                                                                   : TlsStep::nonsense;
}

bool TlsHandshake::learn_outcome() noexcept {
  return noted_ == 3 &&
         libssl()->export_key(stream_, outcome_.binding.data(), outcome_.binding.size(),
                              kExporterLabel.data(), kExporterLabel.size(), nullptr, 0, 0) == 1;
}

TlsStep TlsHandshake::step() noexcept {
  const LibSsl& library = *libssl();
  const ForkGate gate;
  const QuietLibSsl quiet;
  library.clear_bio_flags(bio_, LibSsl::kRetryFlags);
  if (library.handshake(stream_) != 1) return failure();
  for (std::string& secret : secrets_) ::explicit_bzero(secret.data(), secret.size());
  secrets_.clear();
  if (!library.key_was_used(stream_)) return TlsStep::key_rejected;
  return learn_outcome() ? TlsStep::done : TlsStep::no_memory;
}

}  // namespace fab
