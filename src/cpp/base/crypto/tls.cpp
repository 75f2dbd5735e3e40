#include "base/crypto/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace fab {
namespace {

constexpr std::size_t kMostSealed = 256 * 1024;  // bytes that wait for the socket
constexpr std::size_t kFullRecord = kMostInRecord + kRecordOverhead;
constexpr std::size_t kWorthACall = 4 * kFullRecord;  // so many are worth a system call
// Small records come as a whole with the first look. Of large ones as many bytes are read at once as one call
// sends of them; with more or less, each read would cut a record, and its beginning would have to be moved.
constexpr std::size_t kFirstLook = 2048, kReadAtOnce = kWorthACall;
constexpr int kMostWithoutData = 32;  // records in a round

}  // namespace

Tls::Tls(int socket, TlsHandshake::Part part, std::vector<std::string> secrets, Records where)
    : socket_(socket),
      where_(where),
      handshake_(std::make_unique<TlsHandshake>(socket, part, std::move(secrets), sealed_)) {}

std::unique_ptr<Tls> Tls::call(int socket, const std::string& secret, Records where) {
  return std::unique_ptr<Tls>(new Tls(socket, TlsHandshake::Part::calls, {secret}, where));
}

std::unique_ptr<Tls> Tls::answer(int socket, std::vector<std::string> secrets, Records where) {
  return std::unique_ptr<Tls>(new Tls(socket, TlsHandshake::Part::answers, std::move(secrets), where));
}

Tls::Step Tls::handshake() noexcept {
  const Step step = handshake_->step();
  const bool pushed = push();  // an alert, too
  if (step != Step::done) return step;
  return pushed ? begin_records() : Step::gone;
}

Tls::Step Tls::begin_records() noexcept try {
  const TlsHandshake::Outcome& outcome = handshake_->outcome();
  // What of the handshake still waits here would go behind the kernel's first record.
  if (where_ == Records::in_kernel && !unsent())
    kernel_ = KernelRecords::begin(socket_, outcome.ours, outcome.theirs);
  if (!kernel_) {
    ours_ = std::make_unique<RecordKey>(RecordKey::Use::sealing, outcome.ours);
    theirs_ = std::make_unique<RecordKey>(RecordKey::Use::opening, outcome.theirs);
  }
  binding_ = outcome.binding;
  handshake_.reset();
  return Step::done;
} catch (const std::bad_alloc&) {
  return Step::no_memory;
}

std::span<std::byte> Tls::place() {
  // The owner of a direction decides when its key has sealed enough; the other end follows by itself.
  if ((key_asked_for_ || ours_->used() >= most_records_of_key) && !renew_key()) throw std::bad_alloc();
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

bool Tls::seal_note(RecordType type, std::span<const std::byte> content) {
  std::ranges::copy(content, sealed_.room(content.size() + kRecordOverhead).data() + kRecordHeader);
  return seal_as(type, content.size()) != 0;
}

bool Tls::renew_key() {
  key_asked_for_ = false;
  return seal_note(RecordType::handshake, kKeyUpdate) && ours_->renew();
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
  if (ours_) ours_->prepare();  // while the other end is at work
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
  else
    theirs_->prepare();
  return got > 0;
}

// Empty: it has not come as a whole.
std::span<std::byte> Tls::next_record() {
  for (;;) {
    const std::span<std::byte> all = come_.bytes();
    std::size_t length = kRecordOverhead;
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
  seal_note(RecordType::alert, kBadRecordAlert);
  push();
} catch (const std::bad_alloc&) {
  return;  // the end of the connection says enough
}

// Of a record without data.
void Tls::note(RecordType type, std::span<const std::byte> content) noexcept {
  const Note note = note_of(type, content);
  if (++without_data_ > kMostWithoutData || note == Note::nonsense) return end_with(Step::nonsense);
  if (note == Note::leaves) ended_ = Step::gone;
  if (note != Note::renews && note != Note::renews_and_asks) return;
  key_asked_for_ |= note == Note::renews_and_asks;
  if (!theirs_->renew()) ended_ = Step::no_memory;
}

std::span<const std::byte> Tls::open() {
  come_.let_go(std::exchange(opened_, 0));
  while (!ended_) {
    const std::span<std::byte> record = next_record();
    if (record.empty()) break;
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
