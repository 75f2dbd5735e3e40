#pragma once

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace fab {

// Owns one file descriptor. Move-only; -1 means none.
class OwnFd {
 public:
  OwnFd() noexcept = default;
  explicit OwnFd(int fd) noexcept : fd_(fd) {}
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd& operator=(OwnFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~OwnFd() { reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Whether a system call failed because descriptors or memory ran out, which others may give back at any time.
inline bool is_shortage(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

// For set-up code: throws std::system_error with errno when a system call answered -1.
template <class T>
T check_call(T result, const char* what) {
  if (result == static_cast<T>(-1)) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

}  // namespace fab
