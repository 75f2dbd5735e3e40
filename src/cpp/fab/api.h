#pragma once

// What the headers of this folder have in common. They include nothing of the rest of the library, so that a
// program depends on what is written here alone.

#include <limits>

#include "fab/version.h"

// Seen from outside where the library is shared.
#define FAB_API [[gnu::visibility("default")]]

// The namespace of the interface. Programs need not write its inner name. Within the library, whose own
// classes have some of the same names, one has to.
#ifdef FAB_WITHIN
#define FAB_BEGIN \
  namespace fab { \
  namespace FAB_INTERFACE_NAME {
#else
#define FAB_BEGIN \
  namespace fab { \
  inline namespace FAB_INTERFACE_NAME {
#endif
#define FAB_END \
  }             \
  }

FAB_BEGIN

inline constexpr double kForever = std::numeric_limits<double>::infinity();  // seconds

FAB_END
