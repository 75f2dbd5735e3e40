// Cross-memory attach, the bare system call: put = process_vm_writev, get = process_vm_readv. The target
// sleeps.
#include <sys/uio.h>

#include "pair.h"

static pid_t target;
static char* remote;

static void put(const Pair* pair, const Request* request) {
  struct iovec from = {pair->buffer, request->size}, to = {remote, request->size};
  for (long i = 0; i < request->batch; i++)
    check(process_vm_writev(target, &from, 1, &to, 1, 0) == (ssize_t)request->size, "process_vm_writev");
}

static void get(const Pair* pair, const Request* request) {
  struct iovec to = {pair->buffer, request->size}, from = {remote, request->size};
  for (long i = 0; i < request->batch; i++)
    check(process_vm_readv(target, &to, 1, &from, 1, 0) == (ssize_t)request->size, "process_vm_readv");
}

static Batch find(const char* what) {
  if (!strcmp(what, "put")) return put;
  if (!strcmp(what, "get")) return get;
  return NULL;
}

// The answer comes after the initiator's last call, so that what is checked then is what was written.
static void serve(const Pair* pair, const Request* request) {
  (void)request;
  while (!atomic_load(&pair->shared->finished)) usleep(200);
}

int main(int argc, char** argv) {
  Pair pair;
  int is_target = open_pair(&pair, argc, argv);
  if (is_target) {
    struct {
      pid_t pid;
      char* buffer;
    } mine = {getpid(), pair.buffer};
    send_all(pair.control, &mine, sizeof mine);
    target_loop(&pair, serve);
  }
  struct {
    pid_t pid;
    char* buffer;
  } theirs;
  if (!receive_all(pair.control, &theirs, sizeof theirs)) fail("target", "died");
  target = theirs.pid, remote = theirs.buffer;
  initiator_loop(&pair, find);
  return 0;
}
