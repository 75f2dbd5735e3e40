#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

// What a process finds out once, or can do once, is tried in a child of its own.
namespace fab::test {

// How the child ended, as waitpid() tells it. It ends with 0 if `what` returns true, with 1 if not, and with
// 2 if it throws.
template <class What>
int status_of_child(const What& what) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) try {
      ::_exit(what() ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace fab::test
