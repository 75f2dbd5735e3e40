#pragma once

// Marks what a function returns a view of: behind a parameter, that argument; behind the parameters, the
// object itself. clang warns where such a view outlives it, and scripts/lint takes that for an error. Other
// compilers do not know it.
#ifdef __clang__
#define FAB_LIFETIME_BOUND [[clang::lifetimebound]]
#else
#define FAB_LIFETIME_BOUND
#endif
