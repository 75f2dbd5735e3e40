// For LD_PRELOAD: a device that takes dma-bufs, made of one that does not. What is registered as a dma-buf is
// mapped aside, out of the program's sight, and registered from there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void* found(void* handle, const char* name) {
  void* (*real)(void*, const char*) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return real(handle, name);
}

static void* reg_dmabuf_mr(void* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  char name[40];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const int file = open(name, O_RDWR | O_CLOEXEC);
  const uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
  char* memory =
      mmap(NULL, before + length, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(offset - before));
  close(file);
  if (memory == MAP_FAILED) return NULL;
  void* (*reg_mr_iova2)(void*, void*, size_t, uint64_t, unsigned) =
      found(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_reg_mr_iova2");
  return reg_mr_iova2(pd, memory + before, length, iova, (unsigned)access);
}

void* dlsym(void* handle, const char* name) {
  return strcmp(name, "ibv_reg_dmabuf_mr") == 0 ? (void*)reg_dmabuf_mr : found(handle, name);
}
