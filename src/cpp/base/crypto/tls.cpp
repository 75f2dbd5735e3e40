#include "base/crypto/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace fab {
namespace {

constexpr std::size_t kMostSealed = 256 * 1024;  // bytes that wait for the socket
constexpr std::size_t kRecordOverhead = kRecordHeader + kRecordTrailer;
constexpr std::size_t kFullRecord = kMostInRecord + kRecordOverhead;
constexpr std::size_t kWorthACall = 4 * kFullRecord;  // so many are worth a system call
// Small records come as a whole with the first look. Of large ones as many bytes are read at once as one call
// sends of them; with more or less, each read would cut a record, and its beginning would have to be moved.
constexpr std::size_t kFirstLook = 2048, kReadAtOnce = kWorthACall;
constexpr std::uint64_t kRecordsOfKey = 1ull << 23;  // AES-GCM seals at most 2^24.5 (RFC 8446, 5.5)
constexpr int kMostWithoutData = 32;                 // records in a round
// Messages, and what they say (RFC 8446, 4.6.3 and 6).
constexpr std::byte kKeyUpdate{24}, kFatal{2}, kBadRecord{20}, kCloseNotify{0};
constexpr std::size_t kKeyUpdateLength = 5;

}  // namespace

Tls::Tls(int socket, TlsHandshake::Part part, std::vector<std::string> secrets)
    : socket_(socket),
      handshake_(std::make_unique<TlsHandshake>(socket, part, std::move(secrets), sealed_)) {}

std::unique_ptr<Tls> Tls::call(int socket, const std::string& secret) {
  return std::unique_ptr<Tls>(new Tls(socket, TlsHandshake::Part::calls, {secret}));
}

std::unique_ptr<Tls> Tls::answer(int socket, std::vector<std::string> secrets) {
  return std::unique_ptr<Tls>(new Tls(socket, TlsHandshake::Part::answers, std::move(secrets)));
}

Tls::Step Tls::handshake() noexcept {
  const Step step = handshake_->step();
  const bool pushed = push();  // an alert, too
  if (step != Step::done) return step;
  return pushed ? begin_records() : Step::gone;
}

Tls::Step Tls::begin_records() noexcept try {
  const TlsHandshake::Outcome& outcome = handshake_->outcome();
  ours_ = std::make_unique<RecordKey>(RecordKey::Use::sealing, outcome.ours);
  theirs_ = std::make_unique<RecordKey>(RecordKey::Use::opening, outcome.theirs);
  binding_ = outcome.binding;
  handshake_.reset();
  return Step::done;
} catch (const std::bad_alloc&) {
  return Step::no_memory;
}

std::span<std::byte> Tls::place() {
  // The owner of a direction decides when its key has sealed enough; the other end follows by itself.
  if ((key_asked_for_ || ours_->used() >= kRecordsOfKey) && !renew_key()) throw std::bad_alloc();
  if (sealed_.size() + kFullRecord > kMostSealed) return {};
  return sealed_.room(kFullRecord).subspan(kRecordHeader, kMostInRecord);
}

std::size_t Tls::seal_as(RecordType type, std::size_t count) noexcept {
  const std::size_t length = ours_->seal(sealed_.room(count + kRecordOverhead).data(), count, type);
  sealed_.add(length);
  return length;
}

bool Tls::seal(std::size_t count) noexcept {
  return seal_as(RecordType::data, count) != 0 && (sealed_.size() < kWorthACall || push());
}

bool Tls::renew_key() {
  std::byte* const said = sealed_.room(kKeyUpdateLength + kRecordOverhead).data() + kRecordHeader;
  std::fill_n(said, kKeyUpdateLength, std::byte{0});  // the other end need not renew its own
  said[0] = kKeyUpdate;
  said[3] = std::byte{1};
  key_asked_for_ = false;
  return seal_as(RecordType::handshake, kKeyUpdateLength) != 0 && ours_->renew();
}

bool Tls::push() noexcept {
  while (unsent()) {
    const auto taken = ::send(socket_, sealed_.bytes().data(), sealed_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken >= 0) {
      sealed_.let_go(static_cast<std::size_t>(taken));
      handed_ += static_cast<std::size_t>(taken);
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      break;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Reads what the socket has, at most until a read may end where a record does. Whether something has come.
bool Tls::look(std::size_t least) {
  if (dry_) return false;
  const std::size_t most = least > kFirstLook ? kReadAtOnce : kFirstLook;
  const std::span<std::byte> room = come_.room(most - come_.size()).first(most - come_.size());
  ssize_t got;
  do got = ::recv(socket_, room.data(), room.size(), MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  dry_ = std::cmp_less(got, room.size());
  if (got > 0)
    come_.add(static_cast<std::size_t>(got));
  else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
    ended_ = Step::gone;
  return got > 0;
}

// Empty: it has not come as a whole.
std::span<std::byte> Tls::next_record() {
  for (;;) {
    const std::span<std::byte> all = come_.bytes();
    std::size_t length = kRecordHeader + kRecordTrailer;
    if (all.size() >= kRecordHeader) {
      length = length_of_record(all);
      if (static_cast<RecordType>(all[0]) != RecordType::data ||
          length > kRecordHeader + kMostSealedInRecord) {
        end_with(Step::nonsense);
        return {};
      }
    }
    if (all.size() >= length) return all.first(length);
    if (!look(length)) return {};
  }
}

void Tls::end_with(Step why) noexcept try {
  ended_ = why;
  std::byte* const said = sealed_.room(2 + kRecordOverhead).data() + kRecordHeader;
  said[0] = kFatal;
  said[1] = kBadRecord;
  seal_as(RecordType::alert, 2);
  push();
} catch (const std::bad_alloc&) {
  return;  // the end of the connection says enough
}

// Of a record without data: the other end may go on with another key, or say that it ends. Everything else
// ends the connection.
void Tls::note(RecordType type, std::span<const std::byte> content) noexcept {
  const bool renews = type == RecordType::handshake && content.size() == kKeyUpdateLength &&
                      content[0] == kKeyUpdate && content[1] == std::byte{0} && content[2] == std::byte{0} &&
                      content[3] == std::byte{1} && content[4] <= std::byte{1};
  const bool leaves = type == RecordType::alert && content.size() == 2 && content[1] == kCloseNotify;
  const bool nothing = type == RecordType::data && content.empty();
  if (++without_data_ > kMostWithoutData || !(renews || leaves || nothing)) return end_with(Step::nonsense);
  if (leaves) ended_ = Step::gone;
  if (!renews) return;
  key_asked_for_ |= content[4] == std::byte{1};
  if (!theirs_->renew()) ended_ = Step::no_memory;
}

std::span<const std::byte> Tls::open() {
  come_.let_go(std::exchange(opened_, 0));
  while (!ended_) {
    const std::span<std::byte> record = next_record();
    if (record.empty()) break;
    const QuietLibSsl quiet;
    const auto content = theirs_->open(record.data(), record.size());
    opened_ = record.size();
    if (!content) {
      end_with(Step::nonsense);
      break;
    }
    const std::span<const std::byte> opened = record.subspan(kRecordHeader, content->length);
    if (content->type == RecordType::data && !opened.empty()) return opened;
    note(content->type, opened);
    come_.let_go(std::exchange(opened_, 0));
  }
  return {};
}

}  // namespace fab
