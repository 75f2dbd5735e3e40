#include "base/crypto/tls_records.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <string_view>

using namespace fab;

namespace {

std::string bytes_of(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

Digest secret_of(std::string_view digits) {
  Digest secret;
  std::memcpy(secret.data(), bytes_of(digits).data(), secret.size());
  return secret;
}

std::string sealed(RecordKey& key, std::string_view content, RecordType type = RecordType::data) {
  std::string record(kRecordHeader + content.size() + kRecordTrailer, '\0');
  content.copy(record.data() + kRecordHeader, content.size());
  CHECK(key.seal(reinterpret_cast<std::byte*>(record.data()), content.size(), type) == record.size());
  return record;
}

std::string opened(RecordKey& key, std::string record) {
  const auto content = key.open(reinterpret_cast<std::byte*>(record.data()), record.size());
  if (!content) return "(refused)";
  return std::to_string(static_cast<int>(content->type)) + ":" +
         record.substr(kRecordHeader, content->length);
}

// RFC 8448, 3: the client's traffic secret, and its record of 50 bytes that count.
constexpr std::string_view kSecret = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
constexpr std::string_view kRecord =
    "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b4"
    "6b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";

const Digest kAny = secret_of("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");

}  // namespace

TEST_CASE("a record is sealed and opened as the RFC's example says") {
  REQUIRE(libssl());
  std::string counted;
  for (char i = 0; i < 50; ++i) counted += i;
  RecordKey ours(RecordKey::Use::sealing, secret_of(kSecret)),
      theirs(RecordKey::Use::opening, secret_of(kSecret));
  const std::string record = sealed(ours, counted);
  const bool same = record == bytes_of(kRecord);
  CHECK(same);
  CHECK(opened(theirs, record) == "23:" + counted);
}

TEST_CASE("records are opened in the order in which they were sealed, once, and unchanged") {
  RecordKey ours(RecordKey::Use::sealing, kAny);
  const std::string first = sealed(ours, "first"), second = sealed(ours, "second");
  CHECK(sealed(ours, "first") != first);
  const auto theirs = [] { return RecordKey(RecordKey::Use::opening, kAny); };
  {
    RecordKey key = theirs();
    CHECK(opened(key, second) == "(refused)");
  }
  {
    RecordKey key = theirs();
    CHECK(opened(key, first) == "23:first");
    CHECK(opened(key, first) == "(refused)");
  }
  for (std::size_t at = 0; at < first.size(); ++at) {
    std::string changed = first;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    RecordKey key = theirs();
    CHECK(opened(key, changed) == "(refused)");
  }
  for (std::size_t length = 0; length < first.size(); ++length) {
    RecordKey key = theirs();
    CHECK(opened(key, first.substr(0, length)) == "(refused)");
  }
}

TEST_CASE("a record has its type behind its content, and zeros behind that hide how long it is") {
  RecordKey ours(RecordKey::Use::sealing, kAny), theirs(RecordKey::Use::opening, kAny);
  CHECK(opened(theirs, sealed(ours, "", RecordType::alert)) == "21:");
  CHECK(opened(theirs, sealed(ours, "padded\x16", static_cast<RecordType>(0))) == "22:padded");
  CHECK(opened(theirs, sealed(ours, std::string(100, '\0'), static_cast<RecordType>(0))) == "(refused)");
}

TEST_CASE("a record holds so much, and no more") {
  RecordKey ours(RecordKey::Use::sealing, kAny), theirs(RecordKey::Use::opening, kAny);
  const std::string most(kMostInRecord, 'x');
  const bool same = opened(theirs, sealed(ours, most)) == "23:" + most;
  CHECK(same);
  CHECK(opened(theirs, sealed(ours, most + 'x')) == "(refused)");
}

TEST_CASE("the next key follows from the one before, on both sides") {
  RecordKey ours(RecordKey::Use::sealing, kAny), theirs(RecordKey::Use::opening, kAny);
  const std::string before = sealed(ours, "text");
  CHECK(opened(theirs, before) == "23:text");
  CHECK(ours.used() == 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(ours.renew());
    CHECK(theirs.renew());
    CHECK(ours.used() == 0);
    const std::string after = sealed(ours, "text");
    CHECK(after != before);
    CHECK(opened(theirs, after) == "23:text");
  }
  CHECK(ours.renew());
  CHECK(opened(theirs, sealed(ours, "text")) == "(refused)");
}

TEST_CASE("what was prepared for a record fits whatever record comes, and the keys that follow") {
  RecordKey plain(RecordKey::Use::sealing, kAny), ours(RecordKey::Use::sealing, kAny),
      theirs(RecordKey::Use::opening, kAny);
  const auto meet = [&](const std::string& content) {
    ours.prepare();
    theirs.prepare();
    ours.prepare();
    const std::string record = sealed(ours, content);
    const bool same = record == sealed(plain, content);  // so the nonce is that of the record's number
    CHECK(same);
    CHECK(opened(theirs, record) == "23:" + content);
  };
  for (const std::size_t length : {0, 8, 8, 9, 4000, 8, 1, 1, 0}) meet(std::string(length, 'x'));
  ours.prepare();
  theirs.prepare();
  for (RecordKey* key : {&plain, &ours, &theirs}) CHECK(key->renew());
  for (const std::size_t length : {0, 8, 8}) meet(std::string(length, 'y'));
  theirs.prepare();
  std::string changed = sealed(ours, "12345678");
  changed[1] ^= 1;  // a header of the same length as the one before
  CHECK(opened(theirs, changed) == "(refused)");
}
