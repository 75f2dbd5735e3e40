#include "libfabric/plugin/loader.h"

#include <dlfcn.h>

#include <cerrno>

namespace fab::fi {
namespace {

struct Loader {
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_log_enabled) log_enabled = nullptr;
  decltype(&::fi_log) log = nullptr;
};

Loader& loader() noexcept {
  static constinit Loader found;
  return found;
}

template <class Function>
void find(void* library, const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

void find_loader(const void* caller) noexcept {
  Dl_info where{};
  if (!::dladdr(caller, &where) || !where.dli_fname) return;
  // It stays open: what was found there is called as long as the process lives.
  void* const library = ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  find(library, "fi_version", loader().version);
  find(library, "fi_log_enabled", loader().log_enabled);
  find(library, "fi_log", loader().log);
}

namespace {

bool is_logged(fi_log_level level, fi_log_subsys subsystem) noexcept {
  const Loader& found = loader();
  return found.log && found.log_enabled && found.log_enabled(&this_provider(), level, subsystem);
}

void write(fi_log_level level, fi_log_subsys subsystem, const char* text, const char* more) noexcept {
  const int saved = errno;
  loader().log(&this_provider(), level, subsystem, "pyfab", 0, "%s%s%s\n", text, *more ? ": " : "", more);
  errno = saved;
}

}  // namespace

std::uint32_t loader_version() noexcept { return loader().version ? loader().version() : FI_VERSION(1, 17); }

fi_provider& this_provider() noexcept {
  static constinit fi_provider provider{};
  return provider;
}

void log(fi_log_level level, fi_log_subsys subsystem, const std::string& text) noexcept {
  if (is_logged(level, subsystem)) write(level, subsystem, text.c_str(), "");
}

void log_failure(fi_log_subsys subsystem, const char* call, const char* what) noexcept {
  if (!is_logged(FI_LOG_WARN, subsystem)) return;
  write(FI_LOG_WARN, subsystem, call, what);
}

}  // namespace fab::fi
