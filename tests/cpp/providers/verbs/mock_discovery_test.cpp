// What is said of a device that fails, of one that cannot be used, and of what it has for programs to choose.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <tuple>

#include "base/network/tcp_socket.h"
#include "fabric/types/error.h"
#include "providers/providers.h"
#include "providers/verbs/device/relaxed_ordering.h"
#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

std::vector<Info> found() { return verbs::make_verbs_provider()->discover(); }

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  const bool said = text.find(part) != std::string::npos;
  CHECK(said);
  return said;
}

void check_refused(Errc code, const std::string& part, const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    says(error.what(), part);
    return;
  }
  FAIL_CHECK("nothing was refused, though " << part << " was to be said");
}

void check_refused(Errc code, const std::string& part, DomainOptions options) {
  check_refused(code, part, [&] { open_mock(std::move(options))->close(true); });
}

// What tells a device of itself in files: a folder in place of /sys/class/infiniband.
class TellingFiles {
 public:
  TellingFiles() : folder_(std::filesystem::temp_directory_path() / "pyfab-gids-XXXXXX") {
    std::string name = folder_.string();
    REQUIRE(::mkdtemp(name.data()));
    folder_ = name;
    std::filesystem::create_directories(folder_ / "mock0");
    ::setenv("PYFAB_MOCK_SYS", folder_.c_str(), 1);
  }
  ~TellingFiles() {
    ::unsetenv("PYFAB_MOCK_SYS");
    std::filesystem::remove_all(folder_);
  }
  TellingFiles(const TellingFiles&) = delete;
  TellingFiles& operator=(const TellingFiles&) = delete;

  void line(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << '\n';
  }
  void gid(int index, const std::string& text, const std::string& type) const {
    line("mock0/ports/1/gids/" + std::to_string(index), text);
    line("mock0/ports/1/gid_attrs/types/" + std::to_string(index), type);
  }
  void link(const std::string& path, const std::string& to) const {
    std::filesystem::create_symlink(to, folder_ / path);
  }

 private:
  std::filesystem::path folder_;
};

std::string gid_text(const std::string& host) {
  return parse_socket_address(host, 0).v6() ? host : "::ffff:" + host;
}

// A put between two domains with these options reaches its memory by the devices themselves.
void check_puts(const DomainOptions& options) {
  MockNode a(options, 64), b(options, 1 << 20);
  const PeerId to_b = a.knows(b);
  const std::vector<std::byte> bytes(b.memory.size(), std::byte{5});
  const int before = mock_verbs_objects("written");
  Begun put(
      a, to_b,
      transfer_of(OpCode::write, b.region->key(), 0, const_cast<std::byte*>(bytes.data()), bytes.size()));
  CHECK(put.outcome() == Errc::ok);
  CHECK(b.memory == bytes);
  CHECK(mock_verbs_objects("written") - before == static_cast<int>(bytes.size()));
}

}  // namespace

TEST_CASE("a device that lacks something for now is an error, and one that fails is not there") {
  if (!mock_device()) return;
  for (const std::string call :
       {"get_devices", "event_channel", "create_id", "bind", "query_device", "query_port"}) {
    CAPTURE(call);
    {
      const MockFaults lacks("refuse=" + call + ":1/1");
      Errc told = Errc::ok;
      try {
        found();
      } catch (const std::exception& error) {
        told = shortage_or(error, Errc::ok);
      }
      CHECK(told == Errc::no_memory);
    }
    const MockFaults fails("deny=" + call + ":1/1");
    const std::vector<Info> infos = found();
    const bool without_address = call == "event_channel" || call == "create_id" || call == "bind";
    REQUIRE(infos.size() == (without_address ? 1 : 0));
    if (!without_address) continue;
    CHECK(infos.front().usable);  // by exchange: it has a GID
    DomainOptions options;
    options.settings["verbs_connect"] = "cm";
    check_refused(Errc::not_supported_here, "mock0 has no IP address", options);
  }
  CHECK(found().front().usable);
}

TEST_CASE("a port that is down says so, and one of InfiniBand has that name") {
  if (!mock_device()) return;
  {
    const MockFaults down("port_state=1,infiniband=1");
    const Info info = found().front();
    CHECK_FALSE(info.usable);
    says(info.why, "mock0 has no active port; check the cable");
    CHECK(info.fabric == "infiniband");
    CHECK(info.nics.front().state == "down, InfiniBand, MTU 4096");
    check_refused(Errc::no_data, "mock0 has no active port", DomainOptions{});
    check_refused(Errc::no_data, "no link of \"verbs:mock0\" can be used here: mock0 has no active port",
                  [] { find_links("verbs:mock0"); });
    CHECK(find_links("verbs:mock0|tcp:lo").front().provider == "tcp");
  }
  CHECK(found().front().fabric == "roce");
  CHECK(find_links("verbs:mock0").front().usable);
}

TEST_CASE("the GID of an address is shown, and programs choose by its index") {
  if (!mock_device()) return;
  const std::string host = mock_device()->src_addr;
  check_refused(Errc::invalid, "it has none, leave the setting out", with_setting("verbs_gid_index", "0"));
  const TellingFiles files;
  files.gid(0, "0000:0000:0000:0000:0000:0000:0000:0000", "");
  files.gid(1, "fe80:0000:0000:0000:0211:22ff:fe33:4455", "RoCE v2");
  files.gid(2, gid_text(host), "IB/RoCE v1");
  files.gid(3, gid_text(host), "RoCE v2");
  files.line("0000:3b:00.0/numa_node", "1");
  files.link("mock0/device", "../0000:3b:00.0");
  files.link("0000:3b:00.0/driver", "../drivers/mock_core");

  const NicInfo nic = found().front().nics.front();
  CHECK(nic.state == "up, RoCE, MTU 4096, GID 2 IB/RoCE v1, GID 3 RoCE v2");
  CHECK(nic.pci_address == "0000:3b:00.0");
  CHECK(nic.driver == "mock_core");
  CHECK(nic.numa_node == 1);
  for (const char* const index : {"0", "1", "2", "4", "x"})
    check_refused(Errc::invalid, "there is 3 (" + host + ", RoCE v2)",
                  with_setting("verbs_gid_index", index));
  const auto core = open_mock(with_setting("verbs_gid_index", "3"));
  CHECK(core->domain().info().src_addr == host);
  core->close(true);
}

TEST_CASE("what a device cannot do is refused with what it can") {
  if (!mock_device()) return;
  for (const char* const slots : {"many", "-1", "15", "16385", "4294967296"})
    check_refused(Errc::invalid, "a number of slots from 16 to 16384, which mock0 has",
                  with_setting("verbs_srq", slots));

  const std::string no_paging = "verbs_odp is \"on\", but device mock0 has no on-demand paging";
  const DomainOptions paging = with_setting("verbs_odp", "on");
  DomainOptions without_updates = paging;
  without_updates.settings["verbs_atomics"] = "cpu";
  check_refused(Errc::not_supported_here, no_paging, paging);
  {
    const MockFaults reads_only("odp=8");
    check_refused(Errc::not_supported_here, no_paging, without_updates);
  }
  {
    const MockFaults no_updates("odp=12");
    check_refused(Errc::not_supported_here, no_paging, paging);
    check_puts(without_updates);
  }
  {
    const MockFaults all("odp=28");
    check_puts(paging);
  }
}

TEST_CASE("devices write in any order where the processors want it, or the user") {
  if (!mock_device()) return;
  const auto relaxed = [](const char* choice, const char* atomics) {
    const int before = mock_verbs_objects("relaxed");
    DomainOptions options = with_setting("verbs_relaxed_ordering", choice);
    options.settings["verbs_atomics"] = atomics;
    check_puts(options);
    return mock_verbs_objects("relaxed") - before;
  };
  CHECK(relaxed("off", "cpu") == 0);
  const int everywhere = relaxed("on", "cpu");
  CHECK(everywhere > 0);
  CHECK(relaxed("on", "native") == everywhere);
  std::ifstream file("/proc/cpuinfo");
  const std::string processors{std::istreambuf_iterator<char>(file), {}};
  const bool prefer = verbs::prefers_relaxed_ordering(processors);
  // What peers write keeps its order.
  for (const char* const atomics : {"cpu", "native"}) {
    const int landing = relaxed("auto", atomics);
    CHECK(landing < everywhere);
    CHECK((landing > 0) == prefer);
  }
  check_refused(Errc::invalid, "verbs_relaxed_ordering is \"yes\"; it must be auto, on or off",
                with_setting("verbs_relaxed_ordering", "yes"));
}

TEST_CASE("how packets are sent is chosen within what devices know, and within the deadline") {
  if (!mock_device()) return;
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"verbs_traffic_class", "256", "verbs_traffic_class is \"256\"; it must be a number from 0 to 255"},
      {"verbs_traffic_class", "high", "a number from 0 to 255"},
      {"verbs_retries", "8", "a number from 0 to 7"},
      {"verbs_ack_timeout", "0", "a number from 1 to 31"},
      {"verbs_ack_timeout", "19", "and a peer is lost after peer_deadline, 10"}};
  for (const auto& [name, value, part] : wrong) check_refused(Errc::invalid, part, with_setting(name, value));
  DomainOptions options = with_setting("verbs_traffic_class", "106");
  options.settings["verbs_retries"] = "3";
  options.settings["verbs_ack_timeout"] = "14";
  check_puts(options);
  CHECK(mock_verbs_objects("traffic_class") == 106);
  CHECK(mock_verbs_objects("retries") == 3);
  CHECK(mock_verbs_objects("ack_timeout") == 14);
}

TEST_CASE("what soft-iWARP cannot do is prepared for once, and stays") {
  if (!mock_device()) return;
  const MockFaults soft("vendor=6450548");
  const int before = mock_verbs_objects("cq");
  for (int round = 0; round < 2; ++round) {
    check_puts(DomainOptions{});
    CHECK(mock_verbs_objects("cq") == before + 1);
  }
}

TEST_CASE("an endpoint says what the device does not give, and leaves nothing") {
  if (!mock_device()) return;
  const auto core = open_mock(with_setting("verbs_srq", "64"));
  const auto open_next = [&] {
    return open_context(*core, std::make_shared<AddressVector>(),
                        core->open_completion_queue(64, CompletionQueue::WhenFull::forget_oldest),
                        core->open_event_queue());
  };
  const auto held = [] {
    std::string all;
    for (const char* const kind : {"pd", "cq", "qp", "mr", "cm_id", "shared_receive"})
      all += std::to_string(mock_verbs_objects(kind)) + " ";
    return all;
  };
  const std::string before = held();
  const std::pair<std::string, std::string> parts[] = {
      {"event_channel", "connection events"}, {"comp_channel", "completion events"},
      {"create_cq", "completion queue"},      {"create_srq", "shared receive queue"},
      {"create_id", "connections"},           {"bind", "listening place on"},
      {"listen", "listening place on"},       {"reg_mr", "access to memory"}};
  for (const auto& part : parts)
    for (const std::string how : {"refuse=", "deny="}) {
      const MockFaults faults(how + part.first + ":1");
      check_refused(Errc::no_memory, "verbs: device mock0 gives no " + part.second, open_next);
      CHECK(held() == before);
    }
  core->contexts().close(*open_next());
  core->close(true);
  const MockFaults faults("deny=alloc_pd:1");
  check_refused(Errc::no_memory, "verbs: device mock0 gives no protection domain", DomainOptions{});
}
