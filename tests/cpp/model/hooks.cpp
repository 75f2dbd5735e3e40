// What the compiler calls for each access when it compiles for the thread sanitizer, whose library is not
// linked: everything goes to the scheduler of the calling thread. Of a thread that has none, it is done at
// once.

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "model/scheduler.h"

namespace {

using model::Scheduler;
using model::Unwatched;

std::uintptr_t number_of(const volatile void* address) noexcept {
  return model::first_address(reinterpret_cast<std::uintptr_t>(address));
}

constexpr std::memory_order order_of(int order) noexcept { return static_cast<std::memory_order>(order & 7); }

template <class T>
T load(const volatile T* place, int order) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __atomic_load_n(place, __ATOMIC_SEQ_CST);
  const Unwatched unwatched;
  return static_cast<T>(scheduler->load(number_of(place), sizeof(T), order_of(order)));
}

template <class T>
void store(volatile T* place, T value, int order) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __atomic_store_n(place, value, __ATOMIC_SEQ_CST);
  const Unwatched unwatched;
  scheduler->store(number_of(place), sizeof(T), value, order_of(order));
}

template <class T, class Change>
T update(volatile T* place, int order, Change change) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) {
    T old = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    while (
        !__atomic_compare_exchange_n(place, &old, change(old), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
  }
  const Unwatched unwatched;
  return static_cast<T>(
      scheduler->update(number_of(place), sizeof(T), order_of(order),
                        [&](std::uint64_t old) { return std::uint64_t{change(static_cast<T>(old))}; }));
}

template <class T>
bool compare_exchange(volatile T* place, T* expected, T value, int success, int failure) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler)
    return __atomic_compare_exchange_n(place, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  const Unwatched unwatched;
  std::uint64_t seen = *expected;
  const bool done = scheduler->compare_exchange(number_of(place), sizeof(T), seen, value, order_of(success),
                                                order_of(failure));
  *expected = static_cast<T>(seen);
  return done;
}

void plain(const volatile void* place, std::size_t size, bool write) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return;
  const Unwatched unwatched;
  scheduler->plain(number_of(place), size, write);
}

}  // namespace

extern "C" {

#define FAB_CHANGE(bits, called, expression)                                                             \
  std::uint##bits##_t __tsan_atomic##bits##_##called(volatile std::uint##bits##_t* place,                \
                                                     std::uint##bits##_t value, int order) {             \
    using T = std::uint##bits##_t;                                                                       \
    return update(place, order, [value]([[maybe_unused]] T old) { return static_cast<T>(expression); }); \
  }
#define FAB_ATOMIC(bits)                                                                                    \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* place, int order) {    \
    return load(place, order);                                                                              \
  }                                                                                                         \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* place, std::uint##bits##_t value,          \
                                   int order) {                                                             \
    store(place, value, order);                                                                             \
  }                                                                                                         \
  FAB_CHANGE(bits, exchange, value)                                                                         \
  FAB_CHANGE(bits, fetch_add, old + value)                                                                  \
  FAB_CHANGE(bits, fetch_sub, old - value)                                                                  \
  FAB_CHANGE(bits, fetch_and, old& value)                                                                   \
  FAB_CHANGE(bits, fetch_or, old | value)                                                                   \
  FAB_CHANGE(bits, fetch_xor, old ^ value)                                                                  \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile std::uint##bits##_t* place,                    \
                                                    std::uint##bits##_t* expected,                          \
                                                    std::uint##bits##_t value, int success, int failure) {  \
    return compare_exchange(place, expected, value, success, failure);                                      \
  }                                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile std::uint##bits##_t* place,                      \
                                                  std::uint##bits##_t* expected, std::uint##bits##_t value, \
                                                  int success, int failure) {                               \
    return compare_exchange(place, expected, value, success, failure);                                      \
  }                                                                                                         \
  std::uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                           \
      volatile std::uint##bits##_t* place, std::uint##bits##_t expected, std::uint##bits##_t value,         \
      int success, int failure) {                                                                           \
    compare_exchange(place, &expected, value, success, failure);                                            \
    return expected;                                                                                        \
  }
FAB_ATOMIC(8)
FAB_ATOMIC(16)
FAB_ATOMIC(32)
FAB_ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __atomic_thread_fence(__ATOMIC_SEQ_CST);
  const Unwatched unwatched;
  scheduler->fence(order_of(order));
}
void __tsan_atomic_signal_fence(int) {}

#define FAB_PLAIN(size)                                                        \
  void __tsan_read##size(void* place) { plain(place, size, false); }           \
  void __tsan_write##size(void* place) { plain(place, size, true); }           \
  void __tsan_unaligned_read##size(void* place) { plain(place, size, false); } \
  void __tsan_unaligned_write##size(void* place) { plain(place, size, true); }
FAB_PLAIN(1)
FAB_PLAIN(2)
FAB_PLAIN(4)
FAB_PLAIN(8)
FAB_PLAIN(16)
void __tsan_read_range(void* place, std::size_t size) { plain(place, size, false); }
void __tsan_write_range(void* place, std::size_t size) { plain(place, size, true); }
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_acquire(void*) {}  // base/locks/tsan.h
void __tsan_release(void*) {}

// --- what the linker sends here (--wrap)

void* __real_memcpy(void* to, const void* from, std::size_t size);
void* __wrap_memcpy(void* to, const void* from, std::size_t size) {
  plain(from, size, false);
  plain(to, size, true);
  return __real_memcpy(to, from, size);
}
void* __real_memmove(void* to, const void* from, std::size_t size);
void* __wrap_memmove(void* to, const void* from, std::size_t size) {
  plain(from, size, false);
  plain(to, size, true);
  return __real_memmove(to, from, size);
}
void* __real_memset(void* to, int value, std::size_t size);
void* __wrap_memset(void* to, int value, std::size_t size) {
  plain(to, size, true);
  return __real_memset(to, value, size);
}

// clang calls these itself.
void* __tsan_memcpy(void* to, const void* from, std::size_t size) { return __wrap_memcpy(to, from, size); }
void* __tsan_memmove(void* to, const void* from, std::size_t size) { return __wrap_memmove(to, from, size); }
void* __tsan_memset(void* to, int value, std::size_t size) { return __wrap_memset(to, value, size); }

int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __real_pthread_mutex_lock(mutex);
  const Unwatched unwatched;
  scheduler->lock(number_of(mutex));
  return 0;
}
int __real_pthread_mutex_trylock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __real_pthread_mutex_trylock(mutex);
  const Unwatched unwatched;
  return scheduler->try_lock(number_of(mutex)) ? 0 : EBUSY;
}
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __real_pthread_mutex_unlock(mutex);
  const Unwatched unwatched;
  scheduler->unlock(number_of(mutex));
  return 0;
}

int __real_sched_yield();
int __wrap_sched_yield() {
  Scheduler* const scheduler = model::watching();
  if (!scheduler) return __real_sched_yield();
  const Unwatched unwatched;
  scheduler->yield();
  return 0;
}
int __real_nanosleep(const timespec* time, timespec* left);
int __wrap_nanosleep(const timespec* time, timespec* left) {
  if (!model::watching()) return __real_nanosleep(time, left);
  return __wrap_sched_yield();
}

}  // extern "C"
