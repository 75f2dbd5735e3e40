// Loaded into a caller (LD_PRELOAD): its calls to port DETOUR_FROM arrive at port DETOUR_TO, and it believes
// that they have gone where they were to go. So does somebody who stands between two hosts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int connect(int socket, const struct sockaddr* address, socklen_t length) {
  int (*real)(int, const struct sockaddr*, socklen_t) =
      (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect");
  const char *from = getenv("DETOUR_FROM"), *to = getenv("DETOUR_TO");
  struct sockaddr_in other;
  if (from && to && address->sa_family == AF_INET && length == sizeof other) {
    memcpy(&other, address, sizeof other);
    if (ntohs(other.sin_port) == atoi(from)) {
      other.sin_port = htons((unsigned short)atoi(to));
      return real(socket, (const struct sockaddr*)&other, length);
    }
  }
  return real(socket, address, length);
}
