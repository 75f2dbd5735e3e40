// What samples by number cost with nothing in between: out of one process, and over sockets written by hand.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { kMost = 65536 };

// Samples `numbers` of `from`, one after the other.
void gather(char* to, const char* from, const int64_t* offsets, const int64_t* numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = offsets[numbers[i]], length = offsets[numbers[i] + 1] - begin;
    memcpy(to, from + begin, length);
    to += length;
  }
}

// The same out of the mapped memory of several ranks of `each` samples.
void gather_mapped(char* to, const char* const* from, int64_t each, const int64_t* offsets,
                   const int64_t* numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rank = numbers[i] / each, begin = offsets[numbers[i]];
    const int64_t length = offsets[numbers[i] + 1] - begin;
    memcpy(to, from[rank] + begin - offsets[rank * each], length);
    to += length;
  }
}

// The same, each to its own place: places[slots[i]].
void place(char* to, const int64_t* places, const int64_t* slots, const char* from, const int64_t* offsets,
           const int64_t* numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    memcpy(to + places[slots[i]], from + offsets[numbers[i]], offsets[numbers[i] + 1] - offsets[numbers[i]]);
}

static int move(int fd, struct iovec* pieces, int64_t count, int out) {
  while (count) {
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count < 1024 ? count : 1024};
    ssize_t moved = out ? sendmsg(fd, &message, MSG_NOSIGNAL) : recvmsg(fd, &message, MSG_WAITALL);
    if (moved <= 0) {
      if (moved < 0 && errno == EINTR) continue;
      return -1;
    }
    while (count && (size_t)moved >= pieces->iov_len) {
      moved -= pieces->iov_len;
      ++pieces;
      --count;
    }
    if (count) {
      pieces->iov_base = (char*)pieces->iov_base + moved;
      pieces->iov_len -= moved;
    }
  }
  return 0;
}

// Answers requests (a count and so many numbers, of which `first` is the first here) until the connection
// ends.
void serve(int fd, const char* base, const int64_t* offsets, int64_t first) {
  static int64_t numbers[kMost];
  static struct iovec pieces[kMost];
  for (;;) {
    int64_t count;
    struct iovec head = {&count, sizeof count};
    if (move(fd, &head, 1, 0) || count > kMost) return;
    struct iovec body = {numbers, count * sizeof *numbers};
    if (move(fd, &body, 1, 0)) return;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t number = numbers[i] - first;
      pieces[i] = (struct iovec){(char*)base + offsets[number], offsets[number + 1] - offsets[number]};
    }
    if (move(fd, pieces, count, 1)) return;
  }
}

// Asks for samples and receives each into its place.
int fetch(int fd, char* to, const int64_t* places, const int64_t* slots, const int64_t* numbers,
          int64_t count) {
  static struct iovec pieces[kMost];
  struct iovec request[2] = {{&count, sizeof count}, {(void*)numbers, count * sizeof *numbers}};
  if (count > kMost || move(fd, request, 2, 1)) return -1;
  for (int64_t i = 0; i < count; ++i)
    pieces[i] = (struct iovec){to + places[slots[i]], places[slots[i] + 1] - places[slots[i]]};
  return move(fd, pieces, count, 0);
}
