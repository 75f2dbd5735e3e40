#pragma once

// What clang's -Wthread-safety is told of locks, with its own names; nothing for other compilers.
// scripts/lint takes its warnings for errors. `FAB_ASSERT_HELD` marks a function that does nothing: it is
// called where a lock is held under a name that the analysis cannot know to be the same.
#ifdef __clang__
#define FAB_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define FAB_THREAD_SAFETY(attribute)
#endif

#define FAB_CAPABILITY(kind) FAB_THREAD_SAFETY(capability(kind))
#define FAB_SCOPED_CAPABILITY FAB_THREAD_SAFETY(scoped_lockable)
#define FAB_GUARDED_BY(lock) FAB_THREAD_SAFETY(guarded_by(lock))
#define FAB_PT_GUARDED_BY(lock) FAB_THREAD_SAFETY(pt_guarded_by(lock))
#define FAB_ACQUIRED_AFTER(...) FAB_THREAD_SAFETY(acquired_after(__VA_ARGS__))
#define FAB_REQUIRES(...) FAB_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define FAB_REQUIRES_SHARED(...) FAB_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
#define FAB_EXCLUDES(...) FAB_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define FAB_ACQUIRE(...) FAB_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define FAB_ACQUIRE_SHARED(...) FAB_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define FAB_TRY_ACQUIRE(...) FAB_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define FAB_RELEASE(...) FAB_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define FAB_RELEASE_SHARED(...) FAB_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
#define FAB_ASSERT_HELD(...) FAB_THREAD_SAFETY(assert_capability(__VA_ARGS__))
