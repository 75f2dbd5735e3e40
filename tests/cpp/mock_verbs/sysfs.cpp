#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

// Shows the device where programs look for devices: what is asked for below /sys/class/infiniband is looked
// for in the folder sys beside this library. It has effect where the library is preloaded.
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

std::string elsewhere(const char* path) {
  constexpr std::size_t length = sizeof kDevices - 1;
  if (!path || std::strncmp(path, kDevices, length) != 0 || (path[length] != '/' && path[length] != 0))
    return path ? path : "";
  Dl_info here{};
  ::dladdr(reinterpret_cast<const void*>(&elsewhere), &here);
  const std::string library = here.dli_fname;
  return library.substr(0, library.rfind('/')) + "/sys" + (path + length);
}

// The mode of a file that is created; the others have none.
mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

int stat(const char* path, struct stat* into) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  return real(elsewhere(path).c_str(), into);
}

int lstat(const char* path, struct stat* into) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("lstat");
  return real(elsewhere(path).c_str(), into);
}

int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return real(folder, elsewhere(path).c_str(), flags, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  static const auto real = next<FILE* (*)(const char*, const char*)>("fopen64");
  return real(elsewhere(path).c_str(), mode);
}

ssize_t readlink(const char* path, char* into, std::size_t length) noexcept {
  static const auto real = next<ssize_t (*)(const char*, char*, std::size_t)>("readlink");
  return real(elsewhere(path).c_str(), into, length);
}
}
