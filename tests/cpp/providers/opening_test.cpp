// Which links a domain is opened over, and what a program is told that asks for others.

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "fabric/types/error.h"
#include "providers/providers.h"

using namespace fab;

namespace {

// A variable of the environment, for as long as this object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

std::string providers_of(const std::string& spec) {
  std::string all;
  for (const Info& info : find_links(spec)) all.append(all.empty() ? "" : " ").append(info.provider);
  return all;
}

Error refusal_of(const std::string& spec, DomainOptions options = {}) {
  options.manual_progress = true;
  try {
    open_domain(spec, std::move(options))->close(true);
  } catch (const Error& error) {
    return error;
  }
  return {Errc::ok, "it was opened"};
}

void check_refusal(Errc code, const std::string& part, const std::string& spec, DomainOptions options = {}) {
  const Error error = refusal_of(spec, std::move(options));
  CAPTURE(spec);
  CHECK(error.code() == code);
  CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
}

DomainOptions setting(const std::string& name, const std::string& value) {
  DomainOptions options;
  options.settings[name] = value;
  return options;
}

}  // namespace

TEST_CASE("what no build and no machine has is named, with what there is instead") {
  check_refusal(Errc::invalid, "unknown provider \"tpc\"; this build has shm, ", "tpc");
  check_refusal(Errc::invalid, "tcp has no device \"nowhere0\"; it has ", "tcp:nowhere0");
  check_refusal(Errc::invalid, "tcp has no device \"nowhere0\"", "shm+tcp:lo,nowhere0");
  check_refusal(Errc::invalid, "unknown setting \"tcp_prot\"; known are shm_copy, ", "tcp:lo",
                setting("tcp_prot", "7"));
}

TEST_CASE("an alternative that is not there gives way to the next, and without a next one says why") {
#if FAB_HAS_VERBS
  const Variable nothing("LD_LIBRARY_PATH", "");
  if (find_links("shm").size() == 1 && refusal_of("verbs").code() == Errc::no_data) {
    CHECK(providers_of("verbs|shm") == "shm");
    check_refusal(Errc::no_data, "no link of \"verbs\" can be used here: verbs", "verbs");
    check_refusal(Errc::no_data, "see `pyfab doctor`", "verbs|shm+verbs");
  } else {
    MESSAGE("skipped: this machine has an RDMA device");
  }
#endif
}

TEST_CASE("nothing asked for means what the environment says, or what stays on this machine") {
  ::unsetenv("FI_LNX_PROV_LINKS");
  CHECK((find_links("").front().caps & caps::kRemoteComm) == 0);  // that a domain is opened over
  check_refusal(Errc::no_data, "FI_LNX_PROV_LINKS names, which is not set", "lnx");
  const Variable links("FI_LNX_PROV_LINKS", "tcp:lo");
  CHECK(configured_links() == "tcp:lo");
  CHECK(providers_of("") == "tcp");
  CHECK(providers_of("lnx") == "tcp");
  CHECK(providers_of("shm") == "shm");
}

TEST_CASE("shared memory is left out of links with others where the program says so") {
  for (const char* const yes : {"1", "true", "YES", "on"}) {
    const Variable off("FI_LNX_DISABLE_SHM", yes);
    CHECK(find_links("shm+tcp:lo").front().domain == find_links("tcp:lo").front().domain);
    CHECK(providers_of("shm") == "shm");
  }
  for (const char* const no : {"0", "False", "no", "OFF", ""}) {
    const Variable on("FI_LNX_DISABLE_SHM", no);
    CHECK(find_links("shm+tcp:lo").front().domain != find_links("tcp:lo").front().domain);
  }
  {
    const Variable off("FI_LNX_DISABLE_SHM", "perhaps");
    check_refusal(Errc::invalid, "FI_LNX_DISABLE_SHM is \"perhaps\"; it is 1 or 0", "shm+tcp:lo");
  }
  check_refusal(Errc::invalid, "lnx_use_srq is \"2\"; it is 1 or 0", "shm", setting("lnx_use_srq", "2"));
  CHECK(refusal_of("shm+tcp:lo", setting("lnx_disable_shm", "1")).code() == Errc::ok);
}

TEST_CASE("the registration cache says which value it does not take, and goes on without a monitor") {
  check_refusal(Errc::invalid,
                "mr_cache_monitor is \"none\"; it is userfaultfd, memhooks, kdreg2 or disabled", "shm",
                setting("mr_cache_monitor", "none"));
  check_refusal(Errc::invalid, "the most bytes that the registration cache tracks", "shm",
                setting("mr_cache_max_size", "-1"));
  {
    const Variable count("FI_MR_CACHE_MAX_COUNT", "many");
    check_refusal(Errc::invalid, "FI_MR_CACHE_MAX_COUNT is \"many\"", "shm");
  }
  for (const char* const missing : {"memhooks", "kdreg2"}) {
    const auto domain = open_domain("shm", setting("mr_cache_monitor", missing));
    const DomainCache& opened = domain->registration_cache();
    CHECK_FALSE(opened.cache);
    CHECK(opened.warning.find("the monitor " + std::string(missing) + " is not available here") !=
          std::string::npos);
    domain->close(true);
  }
  const auto domain = open_domain("shm", setting("mr_cache_monitor", "disabled"));
  CHECK_FALSE(domain->registration_cache().cache);
  CHECK(domain->registration_cache().warning.empty());
  domain->close(true);
}

TEST_CASE("an address and a port to listen at are checked when the domain is opened") {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"tcp_port", "x"}, {"tcp_port", "65536"}, {"tcp_port", "-1"}, {"tcp_listen", "nobody"}}) {
    const std::string shown = name + "=" + value;
    CAPTURE(shown);
    CHECK(refusal_of("tcp:lo", setting(name, value)).code() == Errc::invalid);
  }
  CHECK(refusal_of("tcp:lo", setting("tcp_listen", "127.0.0.1")).code() == Errc::ok);
}
