#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Shows the device where programs look for devices: what is asked for below /sys/class/infiniband is looked
// for in the folder of PYFAB_MOCK_SYS, or else in the folder sys beside this library. It has effect where the
// library comes before that of C: preloaded, or linked.
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// Where to look for a path. It takes no memory, because those who ask are functions of C.
class Place {
 public:
  explicit Place(const char* path) noexcept : path_(path ? path : "") {
    constexpr std::size_t length = sizeof kDevices - 1;
    if (std::strncmp(path_, kDevices, length) != 0 || (path_[length] != '/' && path_[length] != 0)) return;
    if (const char* const given = std::getenv("PYFAB_MOCK_SYS")) {
      std::snprintf(room_, sizeof room_, "%s%s", given, path_ + length);
      path_ = room_;
      return;
    }
    Dl_info here{};
    ::dladdr(reinterpret_cast<const void*>(kDevices), &here);
    const char* const end = std::strrchr(here.dli_fname, '/');
    if (!end) return;
    std::snprintf(room_, sizeof room_, "%.*s/sys%s", static_cast<int>(end - here.dli_fname), here.dli_fname,
                  path_ + length);
    path_ = room_;
  }
  const char* get() const noexcept { return path_; }

 private:
  const char* path_;
  char room_[PATH_MAX];
};

// The mode of a file that is created; the others have none.
mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

int stat(const char* path, struct stat* into) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  return real(Place(path).get(), into);
}

int lstat(const char* path, struct stat* into) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("lstat");
  return real(Place(path).get(), into);
}

int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return real(folder, Place(path).get(), flags, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  static const auto real = next<FILE* (*)(const char*, const char*)>("fopen64");
  return real(Place(path).get(), mode);
}

ssize_t readlink(const char* path, char* into, std::size_t length) noexcept {
  static const auto real = next<ssize_t (*)(const char*, char*, std::size_t)>("readlink");
  return real(Place(path).get(), into, length);
}
}
