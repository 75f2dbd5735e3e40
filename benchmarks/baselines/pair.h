// What every C baseline shares: two pinned processes, buffers, and the line protocol of ../protocol.py.
//
// The initiator reads requests "<what> <size> <batch> <samples>" from stdin and answers each with one JSON
// line
// {"what", "size", "ns": [time per operation of each sample]}. The target sleeps between requests, so that
// contestants that are alive at the same time do not disturb each other.
#ifndef PYFAB_BENCHMARKS_PAIR_H
#define PYFAB_BENCHMARKS_PAIR_H

// Compiled with -D_GNU_SOURCE: affinity and cross-memory attach are GNU extensions.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  char what[32];
  size_t size;     // bytes per operation
  long batch;      // operations per sample
  long samples;    // timed samples
  uint64_t stamp;  // first and last word of what a put must leave in the target's memory
} Request;

typedef struct {
  _Atomic int finished;  // the initiator has timed its last sample; the target may stop making progress
} Shared;

typedef struct {
  int control;  // socket between the two, for set-up and for starting and ending a request
  Shared* shared;
  size_t capacity;   // largest size that will be asked for
  const char* link;  // which link to use, a word from the command line, or ""
  char* buffer;      // capacity bytes: the source at the initiator, the destination at the target
} Pair;

// Runs request->batch operations and returns when all of them are complete.
typedef void (*Batch)(const Pair* pair, const Request* request);
// The initiator's operation called `what`, or NULL.
typedef Batch (*FindBatch)(const char* what);
// Serves one request at the target until it is over.
typedef void (*Serve)(const Pair* pair, const Request* request);

__attribute__((noreturn)) static inline void fail(const char* what, const char* why) {
  printf("{\"error\": \"%s: %s\"}\n", what, why);
  exit(1);
}

static inline void check(int ok, const char* what) {
  if (!ok) fail(what, strerror(errno));
}

static inline double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline void send_all(int fd, const void* data, size_t size) {
  for (const char* at = data; size > 0;) {
    ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "send");
    at += n, size -= (size_t)n;
  }
}

// False at the end of the stream.
static inline int receive_all(int fd, void* data, size_t size) {
  for (char* at = data; size > 0;) {
    ssize_t n = recv(fd, at, size, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "recv");
    if (n == 0) return 0;
    at += n, size -= (size_t)n;
  }
  return 1;
}

// Private memory, faulted in; huge pages advised as NumPy's allocator does. protocol.py has the same.
static inline char* private_memory(size_t size) {
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  if (size >= (4u << 20)) madvise(memory, size, MADV_HUGEPAGE);
  memset(memory, 1, size);
  return memory;
}

static inline char* shared_memory(size_t size) {
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  check(memory != MAP_FAILED, "mmap shared");
  return memory;
}

// PYFAB_BENCH_CORES is "<initiator core>,<target core>".
static inline void pin(int is_target) {
  int cores[2] = {0, 1};
  const char* text = getenv("PYFAB_BENCH_CORES");
  if (text) sscanf(text, "%d,%d", &cores[0], &cores[1]);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[is_target], &set);
  check(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

// Forks. Returns 1 in the target, 0 in the initiator. Usage of the program: <program> <capacity> [link]
static inline int open_pair(Pair* pair, int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  pair->capacity = argc > 1 ? strtoull(argv[1], NULL, 0) : 64u << 20;
  pair->link = argc > 2 ? argv[2] : "";
  pair->shared = (Shared*)shared_memory(4096);
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  pid_t child = fork();
  check(child >= 0, "fork");
  int is_target = child == 0;
  if (is_target) prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(ends[!is_target]);
  pair->control = ends[is_target];
  pin(is_target);
  pair->buffer = private_memory(pair->capacity);
  return is_target;
}

static inline void target_loop(const Pair* pair, Serve serve) {
  Request request;
  while (receive_all(pair->control, &request, sizeof request)) {
    serve(pair, &request);
    uint64_t ends[2] = {0, 0};  // what the target finds in its own memory
    memcpy(&ends[0], pair->buffer, 8);
    memcpy(&ends[1], pair->buffer + request.size - 8, 8);
    send_all(pair->control, ends, sizeof ends);
  }
  exit(0);
}

static inline void initiator_loop(const Pair* pair, FindBatch find) {
  printf("{\"ready\": true}\n");
  char line[256];
  Request request = {.stamp = 0x1000};
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%31s %zu %ld %ld", request.what, &request.size, &request.batch, &request.samples) !=
            4 ||
        request.size < 8 || request.size > pair->capacity) {
      printf("{\"error\": \"bad request\"}\n");
      continue;
    }
    Batch batch = find(request.what);
    if (!batch) {
      printf("{\"error\": \"no operation called %s\"}\n", request.what);
      continue;
    }
    request.stamp++;
    memcpy(pair->buffer, &request.stamp, 8);
    memcpy(pair->buffer + request.size - 8, &request.stamp, 8);
    atomic_store(&pair->shared->finished, 0);
    send_all(pair->control, &request, sizeof request);
    double* ns = malloc(sizeof(double) * (size_t)request.samples);
    for (long i = 0; i < request.samples; i++) {
      double start = now_ns();
      batch(pair, &request);
      ns[i] = (now_ns() - start) / (double)request.batch;
    }
    atomic_store(&pair->shared->finished, 1);
    uint64_t ends[2];
    if (!receive_all(pair->control, ends, sizeof ends)) fail("target", "died");
    int is_put = strncmp(request.what, "put", 3) == 0;
    if (is_put && (ends[0] != request.stamp || ends[1] != request.stamp))
      fail("put", "the bytes did not arrive");
    printf("{\"what\": \"%s\", \"size\": %zu, \"ns\": [", request.what, request.size);
    for (long i = 0; i < request.samples; i++) printf("%s%.1f", i ? ", " : "", ns[i]);
    printf("]}\n");
    free(ns);
  }
  shutdown(pair->control, SHUT_WR);  // the target sees the end and exits first, closing what it holds
  wait(NULL);
}

#endif
