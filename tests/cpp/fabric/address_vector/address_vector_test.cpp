#include "fabric/address_vector/address_vector.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "fabric/address_vector/named_peer_memory.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

// Like those of a job: most bytes are shared, some are random. Some have many contexts.
std::string name_of(std::uint64_t number) {
  std::mt19937_64 random(number);
  Name name;
  const int contexts = number % 50 == 7 ? 30 : 1;
  for (int context = 0; context < contexts; ++context) {
    std::string bytes("0123456789abcdef node ");
    for (int i = 0; i < 3; ++i) bytes.append(std::to_string(random()));
    name.parts.push_back({"shm.0", static_cast<std::uint16_t>(context), bytes.substr(0, 60)});
    name.parts.push_back({"tcp.0", static_cast<std::uint16_t>(context), "port" + std::to_string(number)});
  }
  if (number % 1000 == 3) name.parts.push_back({"big.0", 0, std::string(100'000 + number, 'x')});
  return name.encode();
}

std::string socket_of(std::uint32_t node, std::uint16_t port) {
  const std::uint32_t big = __builtin_bswap32(0x0a000000 + node);
  return pack(SocketAddress::from_bytes({reinterpret_cast<const char*>(&big), 4}, port));
}

VectorName unique_name() {
  static int count = 0;
  return {"test", std::to_string(::getpid()) + "." + std::to_string(count++), false, 0};
}

AddressVector open_named(const VectorName& name, AddressVectorOptions options = {}) {
  return AddressVector(options, open_named_peer_memory(name, options));
}

void check_agreement(const AddressVector& vector, const std::map<PeerId, std::uint64_t>& model,
                     std::string (*address)(std::uint64_t)) {
  CHECK(vector.size() == model.size());
  std::size_t seen = 0;
  for (PeerId index = 0; index < vector.end(); ++index) {
    const auto there = model.find(index);
    REQUIRE(vector.contains(index) == (there != model.end()));
    if (there == model.end()) continue;
    ++seen;
    REQUIRE(vector.lookup(index) == address(there->second));
  }
  CHECK(seen == model.size());
}

// Random insertions and removals beside a map that does the same.
void compare_with_model(AddressVector& vector, std::string (*address)(std::uint64_t), int steps) {
  std::mt19937_64 random(1);
  std::map<PeerId, std::uint64_t> model;
  std::set<PeerId> vacant;
  for (int step = 0; step < steps; ++step) {
    if (model.empty() || random() % 3 != 0) {
      const std::uint64_t number = random() % 2000;
      const PeerId expected = vacant.empty() ? model.size() : *vacant.begin();
      REQUIRE(vector.insert(address(number)) == expected);
      vacant.erase(expected);
      model[expected] = number;
    } else {
      const auto gone = std::next(model.begin(), static_cast<long>(random() % model.size()));
      const auto generation = vector.generation(gone->first);
      CHECK(generation != 0);
      vector.remove(gone->first);
      CHECK(vector.generation(gone->first) == 0);
      vacant.insert(gone->first);
      model.erase(gone);
    }
  }
  check_agreement(vector, model, address);
}

TEST_CASE("the vector does what a map does, with the lowest free index") {
  AddressVector plain;
  compare_with_model(plain, &name_of, 6000);
  AddressVector named = open_named(unique_name());
  compare_with_model(named, &name_of, 3000);
  const auto socket = [](std::uint64_t number) {
    return socket_of(static_cast<std::uint32_t>(number / 8), static_cast<std::uint16_t>(5000 + number % 8));
  };
  for (const bool symmetric : {false, true}) {
    AddressVector sockets({.format = AddressFormat::sockaddr_in, .symmetric = symmetric});
    compare_with_model(sockets, +socket, 6000);
  }
}

TEST_CASE("parts lead to the lowest index of a name that holds them") {
  AddressVector vector;
  for (std::uint64_t i = 0; i < 3000; ++i) vector.insert(name_of(i % 2000));
  for (std::uint64_t i = 0; i < 2000; i += 37)
    for (const Part& part : Name::decode(name_of(i)).parts) CHECK(vector.find(part) == i);
  CHECK(vector.find({"tcp.0", 1, "port1"}) == kNoPeer);
  vector.remove(37);
  CHECK(vector.find(Name::decode(name_of(37)).parts.front()) == 2037);
}

TEST_CASE("a part leads to each handle that a name with it has, once, and to those under one key only") {
  AddressVector vector;
  const std::string name = name_of(7);
  const Part part = Name::decode(name).parts.front(), foreign{"tcp.0", 1, "port1"};
  vector.insert(name_of(6));
  const PeerId first = vector.insert(name), second = vector.insert(name, {.auth = 3}),
               third = vector.insert(name);
  const auto holders = [&](std::optional<std::uint32_t> auth, std::vector<PeerId> found = {}) {
    vector.find_all(part, auth, found);
    std::ranges::sort(found);
    return found;
  };
  CHECK(holders({}) == std::vector{first, second, third});
  CHECK(holders({}, {second, 99}) == std::vector{first, second, third, PeerId{99}});
  CHECK(holders(3) == std::vector{second});
  CHECK(holders(0) == std::vector{first, third});
  CHECK(holders(4).empty());
  vector.remove(first);
  CHECK(holders({}) == std::vector{second, third});
  std::vector<PeerId> none;
  vector.find_all(foreign, {}, none);
  CHECK(none.empty());
}

TEST_CASE("runs hold what is consecutive, and find it") {
  AddressVector vector({.format = AddressFormat::sockaddr_in, .symmetric = true});
  for (std::uint32_t node = 0; node < 1000; ++node)
    for (std::uint16_t port = 0; port < 8; ++port) vector.insert(socket_of(node, 5000 + port));
  for (std::uint32_t i = 0; i < 8000; i += 13) {
    const std::string address = socket_of(i / 8, static_cast<std::uint16_t>(5000 + i % 8));
    CHECK(vector.lookup(i) == address);
    CHECK(vector.find({std::string(kSocketLink), 0, address}) == i);
  }
  CHECK(vector.find({std::string(kSocketLink), 0, socket_of(1000, 5000)}) == kNoPeer);
  CHECK(vector.find({std::string(kSocketLink), 0, socket_of(5, 5008)}) == kNoPeer);
  const auto generation = vector.generation(77);
  vector.remove(77);
  CHECK(vector.find({std::string(kSocketLink), 0, socket_of(9, 5005)}) == kNoPeer);
  CHECK(vector.insert(socket_of(9, 5005)) == 77);
  CHECK(vector.generation(77) != generation);
}

TEST_CASE("readers see one address or none while it changes under them") {
  AddressVector vector;
  for (std::uint64_t i = 0; i < 64; ++i) vector.insert(name_of(i));
  const std::string one = name_of(1), two = name_of(2);
  const Part part = Name::decode(one).parts.front();
  vector.remove(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 3000; ++i) {
      CHECK(vector.insert(i % 2 ? one : two) == 1);
      vector.remove(1);
    }
    stop = true;
  });
  while (!stop) {
    try {
      const std::string got = vector.lookup(1);
      CHECK((got == one || got == two));
    } catch (const Error& error) {
      CHECK(error.code() == Errc::invalid);
    }
    const PeerId found = vector.find(part);
    CHECK((found == 1 || found == kNoPeer));
    CHECK(vector.find(Name::decode(name_of(3)).parts.front()) == 3);
  }
  writer.join();
}

TEST_CASE("what completions report") {
  AddressVector plain, ids({.user_ids = true});
  plain.insert(name_of(1));
  CHECK(plain.insert(name_of(2), {.user_id = 0xabc}) == 1);
  CHECK(plain.reported(0) == 0);
  CHECK(plain.reported(1) == 0xabc);
  ids.insert(name_of(1));
  CHECK(ids.reported(0) == kNoPeer);
  ids.set_user_id(0, 7);
  CHECK(ids.reported(0) == 7);
  CHECK_THROWS_AS(plain.set_user_id(0, 7), Error);
}

TEST_CASE("a handle with a receive context is that of its peer") {
  AddressVector vector({.rx_bits = 4});
  vector.insert(name_of(1));
  CHECK(vector.lookup(std::uint64_t{15} << 60) == name_of(1));
  CHECK_FALSE(vector.contains(kNoPeer));
  CHECK_THROWS_AS(AddressVector({.rx_bits = 9, .max_group = kMaxGroupId}), Error);
}

struct SharedCount {  // by which a parent sees how far its children are
  std::atomic<std::uint64_t>* value = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~SharedCount() { ::munmap(value, 4096); }
};

TEST_CASE("writers that are killed leave nothing torn, and block nobody") {
  const VectorName name = unique_name();
  AddressVector vector = open_named(name);
  for (std::uint64_t i = 0; i < 10; ++i) vector.insert(name_of(100 + i));
  const SharedCount progress;
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    progress.value->store(0);
    const pid_t child = ::fork();
    if (child == 0) {
      AddressVector mine = open_named(name);
      for (std::uint64_t i = 0;; ++i) {
        const PeerId index = mine.insert(name_of(i % 100));
        if (i % 3 != 0) mine.remove(index);
        progress.value->fetch_add(1);
      }
    }
    REQUIRE(child > 0);
    const std::uint64_t until = random() % 40;
    while (progress.value->load() <= until) ::sched_yield();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    // The lowest vacant index, and nobody else's.
    PeerId lowest = 0;
    while (vector.contains(lowest)) ++lowest;
    REQUIRE(vector.insert(name_of(100'000 + static_cast<std::uint64_t>(round))) == lowest);
    std::size_t live = 0;
    for (PeerId i = 0; i < vector.end(); ++i)
      if (vector.contains(i)) {
        const std::string address = vector.lookup(i);
        const Name decoded = Name::decode(address);  // throws if it is torn
        REQUIRE(vector.find(decoded.parts.front()) <= i);
        ++live;
      }
    REQUIRE(live == vector.size());
    for (PeerId i = 10; i < vector.end(); ++i)
      if (vector.contains(i) && random() % 2) vector.remove(i);
  }
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(vector.lookup(i) == name_of(100 + i));
}

TEST_CASE("processes insert at the same time and never get the same index") {
  const VectorName name = unique_name();
  AddressVector vector = open_named(name);
  std::vector<pid_t> children;
  for (std::uint64_t c = 0; c < 4; ++c) {
    children.push_back(::fork());
    if (children.back() == 0) {
      AddressVector mine = open_named(name);
      for (std::uint64_t i = 0; i < 500; ++i) mine.insert(name_of(c * 10'000 + 100 + i % 40));
      ::_exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(vector.size() == 2000);
  CHECK(vector.end() == 2000);
  std::map<std::string, int> counts;
  for (PeerId i = 0; i < 2000; ++i) ++counts[vector.lookup(i)];
  CHECK(counts.size() == 160);
}

TEST_CASE("the file is its user's alone and goes with the last vector") {
  const VectorName name = unique_name();
  const std::string path = named_vector_path(name);
  {
    const AddressVector first = open_named(name), second = open_named(name);
    struct stat status{};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("files of processes that died are taken over, or removed by the next one") {
  const VectorName left = unique_name(), other = unique_name();
  for (const VectorName& name : {left, other}) {
    const pid_t child = ::fork();
    if (child == 0) {
      AddressVector mine = open_named(name);
      mine.insert(name_of(1));
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
  }
  VectorName reading = left;
  reading.read_only = true;
  if (::access(named_vector_path(left).c_str(), F_OK) == 0) CHECK_THROWS_AS(open_named(reading), Error);
  const AddressVector again = open_named(left);
  CHECK(again.size() == 0);
  CHECK(::access(named_vector_path(other).c_str(), F_OK) != 0);
}

TEST_CASE("a damaged file gives errors and nothing worse") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 150; ++round) {
    const VectorName name = unique_name();
    AddressVector owner = open_named(name);
    for (std::uint64_t i = 0; i < 200; ++i) owner.insert(name_of(i + 10));
    for (PeerId i = 0; i < 200; i += 9) owner.remove(i);
    const int fd = ::open(named_vector_path(name).c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    struct stat status{};
    ::fstat(fd, &status);
    void* bytes =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(bytes != MAP_FAILED);
    auto* const at = static_cast<unsigned char*>(bytes);
    const bool header_only = round % 2 == 0;
    const std::size_t range = header_only ? sizeof(PeerHeader) : static_cast<std::size_t>(status.st_size);
    for (int i = 0; i < (header_only ? 6 : 400); ++i) {
      const std::size_t where = 24 + random() % (range - 24);  // not the magic: that is refused at once
      at[where] = static_cast<unsigned char>(random() % 4 ? random() : 0xff);
    }
    try {
      AddressVector vector = open_named(name);
      char address[64];
      const auto attempt = [](auto&& call) {
        try {
          call();
        } catch (const Error&) {
        }
      };
      for (PeerId i = 0; i < 300; ++i) {
        attempt([&] { vector.lookup(i); });
        attempt([&] { vector.lookup(i, address); });
        attempt([&] { vector.name(i); });
        vector.reported(i);
        vector.generation(i);
      }
      for (std::uint64_t i = 0; i < 20; ++i) {
        attempt([&] { vector.find({"tcp.0", 0, "port" + std::to_string(i + 10)}); });
        attempt([&] { vector.insert(name_of(i + 500)); });
        attempt([&] { vector.remove(i); });
      }
    } catch (const Error& error) {
      CHECK((error.code() == Errc::invalid || error.code() == Errc::no_memory));
    }
    ::munmap(bytes, static_cast<std::size_t>(status.st_size));
    // Closing ends the locks of this process on the file, which is gone with it.
    ::close(fd);
  }
}

TEST_CASE("addresses as text survive the way back; rubbish is refused") {
  for (const char* text : {"fi_sockaddr_in://1.2.3.4:80", "fi_sockaddr_in6://[2001:db8::1]:443",
                           "fi_sockaddr_ib://[fe80::1]:0xffff:0x1:0x0"})
    CHECK(print_address(parse_address(text)) == text);
  CHECK(parse_address(print_address(name_of(1))) == name_of(1));
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text =
        i % 2 ? "fi_sockaddr_in6://[2001:db8::1%2]:443" : "fi_sockaddr_ib://[fe80::1]:0xffff:0x1:0x0";
    text[random() % text.size()] = static_cast<char>(random());
    text.resize(random() % (text.size() + 1));
    try {
      print_address(parse_address(text));
    } catch (const Error& error) {
      CHECK(error.code() == Errc::invalid);
    }
    print_address(text);
  }
}

}  // namespace
}  // namespace fab
