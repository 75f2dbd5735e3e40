#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // would take over SIGSEGV from base/memory/fault_guard.h with each
                                         // case
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
