#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <string_view>

namespace fab {

// A library of the system that was looked for: its functions, or one clause that says why there is none.
// Finding out needs no memory.
template <class Functions>
struct OpenedLibrary {
  Functions functions{};
  std::string_view problem;

  const Functions* get() const noexcept { return problem.empty() ? &functions : nullptr; }
};

// Finds functions in a library and in those that it needs, so that all are of one version.
class FunctionFinder {
 public:
  explicit FunctionFinder(void* library) noexcept : library_(library) {}
  template <class Function>
  void operator()(const char* name, Function& function) noexcept {
    optional(name, function);
    complete_ &= function != nullptr;
  }
  template <class Function>
  void optional(const char* name, Function& function) noexcept {  // null where it is not there
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  bool complete() const noexcept { return complete_; }

 private:
  void* const library_;
  bool complete_ = true;
};

struct LibraryName {
  const char *name, *problem;  // what to say if it is there, and lacks something
};

// The first of the libraries that has all that `find(FunctionFinder&, Functions&)` looks for, and for which
// it returns true. It stays open until the process ends. `none`: what to say if none can be opened.
template <class Functions, std::size_t kCount, class Find>
OpenedLibrary<Functions> open_first_of(const LibraryName (&names)[kCount], const char* none, Find find) {
  OpenedLibrary<Functions> opened;
  for (const LibraryName& candidate : names) {
    void* const library = ::dlopen(candidate.name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    FunctionFinder finder(library);
    if (find(finder, opened.functions)) return {opened.functions, {}};
    opened.problem = candidate.problem;
  }
  if (opened.problem.empty()) opened.problem = none;
  return opened;
}

}  // namespace fab
