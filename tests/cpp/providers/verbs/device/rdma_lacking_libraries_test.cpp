// Systems without the libraries of RDMA devices, with one of them, and with old ones.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "providers/verbs/device/library.h"

using namespace fab;

namespace {

const char* absent_library = nullptr;   // a library whose name begins so is not there
const char* absent_function = nullptr;  // a function that no library has

bool problem_says(const char* part) {
  CHECK(verbs::find_library() == nullptr);
  const std::string problem = verbs::library_problem();
  CAPTURE(problem);
  const bool says = problem.find(part) != std::string::npos;
  CHECK(says);
  return says;
}

}  // namespace

extern "C" {
void* __real_dlopen(const char* name, int flags);
void* __real_dlsym(void* library, const char* name);

void* __wrap_dlopen(const char* name, int flags) {
  const bool absent =
      absent_library && name && std::strncmp(name, absent_library, std::strlen(absent_library)) == 0;
  return absent ? nullptr : __real_dlopen(name, flags);
}

// The address sanitizer's own start calls it, too.
__attribute__((no_sanitize("address", "undefined"))) void* __wrap_dlsym(void* library, const char* name) {
  return absent_function && std::strcmp(name, absent_function) == 0 ? nullptr : __real_dlsym(library, name);
}
}

TEST_CASE("what of the libraries is missing is said, and found once it is there") {
  absent_library = "libibverbs";
  problem_says("libibverbs.so.1 cannot be opened (");
  problem_says("install it (Debian: libibverbs1 ibverbs-providers)");
  CHECK_FALSE(verbs::fork_needs_nothing());
  absent_library = nullptr;
  if (!__real_dlopen("libibverbs.so.1", RTLD_NOW) || !__real_dlopen("librdmacm.so.1", RTLD_NOW)) {
    MESSAGE("this machine has no libraries of RDMA devices");
    problem_says("cannot be opened");
    return;
  }
  absent_library = "librdmacm";
  problem_says("librdmacm.so.1 cannot be opened (");
  absent_library = nullptr;
  for (const char* const needed : {"ibv_reg_mr", "ibv_ack_async_event", "rdma_set_option"}) {
    absent_function = needed;
    problem_says(("the rdma-core libraries have no " + std::string(needed) + "; they are too old").c_str());
  }
  absent_function = "ibv_reg_mr_iova2";  // of newer ones
  const verbs::Library* const usable = verbs::find_library();
  REQUIRE(usable);
  CHECK((usable->reg_mr != nullptr));
  CHECK((usable->reg_mr_iova2 == nullptr));
  CHECK(verbs::find_library() == usable);
}
