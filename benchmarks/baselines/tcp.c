// Plain TCP sockets on loopback with TCP_NODELAY.
//   put       send the bytes, wait for an 8-byte acknowledgement; both sides block in the kernel
//   put_spin  the same, both sides spinning with MSG_DONTWAIT
//   put_rate  the bytes of a whole batch back to back, one acknowledgement for all
//   get       send an 8-byte request, receive the bytes; both sides block
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "pair.h"

static int stream;

static void receive_spinning(void* data, size_t size) {
  for (char* at = data; size > 0;) {
    ssize_t n = recv(stream, at, size, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    check(n > 0, "recv");
    at += n, size -= (size_t)n;
  }
}

static void receive(void* data, size_t size) {
  if (!receive_all(stream, data, size)) fail("tcp peer", "closed the connection");
}

static void put(const Pair* pair, const Request* request) {
  uint64_t ack;
  for (long i = 0; i < request->batch; i++) {
    send_all(stream, pair->buffer, request->size);
    receive(&ack, sizeof ack);
  }
}

static void put_spin(const Pair* pair, const Request* request) {
  uint64_t ack;
  for (long i = 0; i < request->batch; i++) {
    send_all(stream, pair->buffer, request->size);
    receive_spinning(&ack, sizeof ack);
  }
}

// Small messages are gathered to one send call of up to 64 KiB, as a library that batches would do.
static void put_rate(const Pair* pair, const Request* request) {
  static char gathered[64 << 10];
  size_t per_send = request->size < sizeof gathered ? sizeof gathered / request->size : 1;
  for (long i = 0; i < request->batch;) {
    long n = request->batch - i < (long)per_send ? request->batch - i : (long)per_send;
    if (per_send == 1) {
      send_all(stream, pair->buffer, request->size);
    } else {
      for (long k = 0; k < n; k++) memcpy(gathered + (size_t)k * request->size, pair->buffer, request->size);
      send_all(stream, gathered, (size_t)n * request->size);
    }
    i += n;
  }
  uint64_t ack;
  receive(&ack, sizeof ack);
}

static void get(const Pair* pair, const Request* request) {
  uint64_t ask = 0;
  for (long i = 0; i < request->batch; i++) {
    send_all(stream, &ask, sizeof ask);
    receive(pair->buffer, request->size);
  }
}

static Batch find(const char* what) {
  if (!strcmp(what, "put")) return put;
  if (!strcmp(what, "put_spin")) return put_spin;
  if (!strcmp(what, "put_rate")) return put_rate;
  if (!strcmp(what, "get")) return get;
  return NULL;
}

static void serve(const Pair* pair, const Request* request) {
  uint64_t word = 0;
  long total = request->batch * request->samples;
  if (!strcmp(request->what, "put_rate")) {
    static char gathered[64 << 10];
    size_t per_receive = request->size < sizeof gathered ? sizeof gathered / request->size : 1;
    for (long s = 0; s < request->samples; s++) {
      for (long i = 0; i < request->batch;) {
        long n = request->batch - i < (long)per_receive ? request->batch - i : (long)per_receive;
        receive(per_receive == 1 ? pair->buffer : gathered, (size_t)n * request->size);
        if (per_receive > 1) memcpy(pair->buffer, gathered, request->size);
        i += n;
      }
      send_all(stream, &word, sizeof word);
    }
  } else if (!strcmp(request->what, "get")) {
    for (long i = 0; i < total; i++) {
      receive(&word, sizeof word);
      send_all(stream, pair->buffer, request->size);
    }
  } else {
    int spin = !strcmp(request->what, "put_spin");
    for (long i = 0; i < total; i++) {
      if (spin)
        receive_spinning(pair->buffer, request->size);
      else
        receive(pair->buffer, request->size);
      send_all(stream, &word, sizeof word);
    }
  }
}

int main(int argc, char** argv) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  check(bind(listener, (struct sockaddr*)&address, length) == 0, "bind");
  check(listen(listener, 1) == 0, "listen");
  check(getsockname(listener, (struct sockaddr*)&address, &length) == 0, "getsockname");
  Pair pair;
  int is_target = open_pair(&pair, argc, argv);
  if (is_target) {
    stream = accept(listener, NULL, NULL);
    check(stream >= 0, "accept");
  } else {
    stream = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(stream, (struct sockaddr*)&address, length) == 0, "connect");
  }
  close(listener);
  check(setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "TCP_NODELAY");
  if (is_target) target_loop(&pair, serve);
  initiator_loop(&pair, find);
  return 0;
}
