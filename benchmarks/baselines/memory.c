// What memory itself can do: the limits for every transport through mapped memory.
//   memcpy         one process, private to private memory
//   memcpy_shared  one process, private memory to a shared mapping
//   fetch_add      one locked instruction on a shared mapping
//   store_seen     a store by one core seen by a reader spinning on another: half a round trip of two stores
#include "pair.h"

static char *destination, *shared_destination;
static _Atomic uint64_t *ping, *pong;

static void copy(const Pair* pair, const Request* request) {
  for (long i = 0; i < request->batch; i++) {
    memcpy(destination, pair->buffer, request->size);
    __asm__ volatile("" ::: "memory");
  }
}

static void copy_shared(const Pair* pair, const Request* request) {
  for (long i = 0; i < request->batch; i++) {
    memcpy(shared_destination, pair->buffer, request->size);
    __asm__ volatile("" ::: "memory");
  }
}

static void fetch_add(const Pair* pair, const Request* request) {
  (void)pair;
  for (long i = 0; i < request->batch; i++) atomic_fetch_add((_Atomic uint64_t*)shared_destination, 1);
}

// Two stores make a round trip, so a batch of n operations is n / 2 round trips, rounded up.
static void store_seen(const Pair* pair, const Request* request) {
  (void)pair;
  for (long i = 0; i < request->batch; i += 2) {
    uint64_t turn = atomic_load_explicit(ping, memory_order_relaxed) + 1;
    atomic_store_explicit(ping, turn, memory_order_release);
    while (atomic_load_explicit(pong, memory_order_acquire) != turn) continue;
  }
}

static Batch find(const char* what) {
  if (!strcmp(what, "memcpy")) return copy;
  if (!strcmp(what, "memcpy_shared")) return copy_shared;
  if (!strcmp(what, "fetch_add")) return fetch_add;
  if (!strcmp(what, "store_seen")) return store_seen;
  return NULL;
}

static void serve(const Pair* pair, const Request* request) {
  if (strcmp(request->what, "store_seen")) return;
  uint64_t seen = atomic_load(pong);
  while (!atomic_load_explicit(&pair->shared->finished, memory_order_relaxed)) {
    uint64_t turn = atomic_load_explicit(ping, memory_order_acquire);
    if (turn != seen) atomic_store_explicit(pong, seen = turn, memory_order_release);
  }
}

int main(int argc, char** argv) {
  char* lines = shared_memory(4096);
  ping = (_Atomic uint64_t*)lines;
  pong = (_Atomic uint64_t*)(lines + 1024);  // far enough to share no prefetched line
  Pair pair;
  if (open_pair(&pair, argc, argv)) target_loop(&pair, serve);
  destination = private_memory(pair.capacity);
  shared_destination = shared_memory(pair.capacity);
  initiator_loop(&pair, find);
  return 0;
}
