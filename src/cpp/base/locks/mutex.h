#pragma once

#include <mutex>
#include <shared_mutex>

#include "base/lifetime.h"
#include "base/locks/thread_safety.h"

namespace fab {

// The mutexes and guards of the standard library, under names that clang's thread-safety analysis knows. What
// a mutex guards is said at the field (FAB_GUARDED_BY), and who has to hold it at the function
// (FAB_REQUIRES).

class FAB_CAPABILITY("mutex") Mutex final {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() FAB_ACQUIRE() { mutex_.lock(); }
  bool try_lock() FAB_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() FAB_RELEASE() { mutex_.unlock(); }
  // Does nothing: says that it is held, where a function is called by somebody who knows it by no name.
  void assert_held() const noexcept FAB_ASSERT_HELD(this) {}

 private:
  friend class UniqueLock;
  std::mutex mutex_;
};

class FAB_CAPABILITY("mutex") SharedMutex final {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;
  void lock() FAB_ACQUIRE() { mutex_.lock(); }
  void unlock() FAB_RELEASE() { mutex_.unlock(); }
  void lock_shared() FAB_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() FAB_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

// Holds any of the mutexes of this folder until its end.
template <class AnyMutex>
class FAB_SCOPED_CAPABILITY LockGuard final {
 public:
  explicit LockGuard(AnyMutex& mutex) FAB_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller has the lock, by try_lock().
  LockGuard(AnyMutex& mutex, std::adopt_lock_t) FAB_REQUIRES(mutex) : mutex_(mutex) {}
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;
  ~LockGuard() FAB_RELEASE() { mutex_.unlock(); }

 private:
  AnyMutex& mutex_;
};

// Gives a mutex back that the caller holds, and takes it again at its end.
template <class AnyMutex>
class FAB_SCOPED_CAPABILITY Unlocked final {
 public:
  explicit Unlocked(AnyMutex& mutex) FAB_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() FAB_RELEASE() { mutex_.lock(); }

 private:
  AnyMutex& mutex_;
};

// Shares a mutex with other readers until its end.
class FAB_SCOPED_CAPABILITY SharedLock final {
 public:
  explicit SharedLock(SharedMutex& mutex) FAB_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;
  ~SharedLock() FAB_RELEASE() { mutex_.unlock_shared(); }

 private:
  SharedMutex& mutex_;
};

// May be given back and taken again.
class FAB_SCOPED_CAPABILITY UniqueLock final {
 public:
  explicit UniqueLock(Mutex& mutex) FAB_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;
  ~UniqueLock() FAB_RELEASE() = default;
  void lock() FAB_ACQUIRE() { lock_.lock(); }
  void unlock() FAB_RELEASE() { lock_.unlock(); }
  // For condition variables, which have the lock again when they return.
  std::unique_lock<std::mutex>& native() noexcept FAB_LIFETIME_BOUND { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace fab
