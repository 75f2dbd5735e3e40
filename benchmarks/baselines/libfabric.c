// libfabric RMA, link "shm" or "tcp;ofi_rxm": every operation asks for FI_DELIVERY_COMPLETE.
//   put, get, fetch_add   one at a time, each complete before the next
//   put_rate, get_rate    up to kWindow in flight, all complete at the end of the batch
// Both providers need the target to make progress, so it spins on its completion queue during a request.
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "pair.h"

enum { kWindow = 64 };

static struct fid_ep* endpoint;
static struct fid_cq* queue;
static struct fid_mr *buffer_region, *counter_region;
static fi_addr_t peer;
static uint64_t counters[2];                 // [0] the target of fetch_add, [1] its operand
static struct fi_context contexts[kWindow];  // both providers ask for FI_CONTEXT

typedef struct {
  uint64_t buffer, buffer_key, counter, counter_key;
  char name[256];
  size_t name_length;
} Card;
static Card remote;

static void good(long rc, const char* what) {
  if (rc < 0) fail(what, fi_strerror((int)-rc));
}

// Returns how many operations completed.
static long reap(void) {
  struct fi_cq_entry entries[kWindow];
  ssize_t n = fi_cq_read(queue, entries, kWindow);
  if (n == -FI_EAGAIN) return 0;
  if (n == -FI_EAVAIL) {
    struct fi_cq_err_entry error = {0};
    fi_cq_readerr(queue, &error, 0);
    fail("completion", fi_strerror(error.err));
  }
  good(n, "fi_cq_read");
  return n;
}

typedef ssize_t (*Post)(const Pair* pair, const Request* request, long i);

static ssize_t post_put(const Pair* pair, const Request* request, long i) {
  return fi_write(endpoint, pair->buffer, request->size, fi_mr_desc(buffer_region), peer, remote.buffer,
                  remote.buffer_key, &contexts[i % kWindow]);
}

static ssize_t post_get(const Pair* pair, const Request* request, long i) {
  return fi_read(endpoint, pair->buffer, request->size, fi_mr_desc(buffer_region), peer, remote.buffer,
                 remote.buffer_key, &contexts[i % kWindow]);
}

static ssize_t post_fetch_add(const Pair* pair, const Request* request, long i) {
  (void)pair, (void)request;
  void* desc = fi_mr_desc(counter_region);
  return fi_fetch_atomic(endpoint, &counters[1], 1, desc, &counters[0], desc, peer, remote.counter,
                         remote.counter_key, FI_UINT64, FI_SUM, &contexts[i % kWindow]);
}

static void windowed(const Pair* pair, const Request* request, Post post, long window) {
  for (long posted = 0, done = 0; done < request->batch;) {
    while (posted < request->batch && posted - done < window) {
      ssize_t rc = post(pair, request, posted);
      if (rc == -FI_EAGAIN) break;
      good(rc, "post");
      posted++;
    }
    done += reap();
  }
}

static void put(const Pair* pair, const Request* request) { windowed(pair, request, post_put, 1); }
static void get(const Pair* pair, const Request* request) { windowed(pair, request, post_get, 1); }
static void fetch_add(const Pair* pair, const Request* request) {
  windowed(pair, request, post_fetch_add, 1);
}
static void put_rate(const Pair* pair, const Request* request) { windowed(pair, request, post_put, kWindow); }
static void get_rate(const Pair* pair, const Request* request) { windowed(pair, request, post_get, kWindow); }

static Batch find(const char* what) {
  if (!strcmp(what, "put")) return put;
  if (!strcmp(what, "get")) return get;
  if (!strcmp(what, "fetch_add")) return fetch_add;
  if (!strcmp(what, "put_rate")) return put_rate;
  if (!strcmp(what, "get_rate")) return get_rate;
  return NULL;
}

static void serve(const Pair* pair, const Request* request) {
  (void)request;
  while (!atomic_load_explicit(&pair->shared->finished, memory_order_relaxed)) reap();
}

static void open_fabric(const Pair* pair, Card* mine) {
  struct fi_info *hints = fi_allocinfo(), *info = NULL;
  int over_tcp = !strncmp(pair->link, "tcp", 3);
  hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = strdup(pair->link);
  good(fi_getinfo(FI_VERSION(1, 17), over_tcp ? "127.0.0.1" : NULL, NULL, over_tcp ? FI_SOURCE : 0, hints,
                  &info),
       "fi_getinfo");
  info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;

  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* addresses;
  good(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
  good(fi_domain(fabric, info, &domain, NULL), "fi_domain");
  good(fi_av_open(domain, &(struct fi_av_attr){.type = FI_AV_TABLE}, &addresses, NULL), "fi_av_open");
  good(fi_cq_open(domain, &(struct fi_cq_attr){.format = FI_CQ_FORMAT_CONTEXT, .size = 1024}, &queue, NULL),
       "fi_cq_open");
  good(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
  good(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind av");
  good(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind cq");
  good(fi_enable(endpoint), "fi_enable");

  uint64_t rights = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  good(fi_mr_reg(domain, pair->buffer, pair->capacity, rights, 0, 1, 0, &buffer_region, NULL), "fi_mr_reg");
  good(fi_mr_reg(domain, counters, sizeof counters, rights, 0, 2, 0, &counter_region, NULL), "fi_mr_reg");
  int by_address = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  *mine = (Card){.buffer = by_address ? (uintptr_t)pair->buffer : 0,
                 .buffer_key = fi_mr_key(buffer_region),
                 .counter = by_address ? (uintptr_t)counters : 0,
                 .counter_key = fi_mr_key(counter_region),
                 .name_length = sizeof mine->name};
  good(fi_getname(&endpoint->fid, mine->name, &mine->name_length), "fi_getname");
  send_all(pair->control, mine, sizeof *mine);
  if (!receive_all(pair->control, &remote, sizeof remote)) fail("peer", "died");
  if (fi_av_insert(addresses, remote.name, 1, &peer, 0, NULL) != 1) fail("fi_av_insert", "refused");
}

// Closing the endpoint removes its segment from /dev/shm.
static void close_endpoint(void) {
  if (endpoint) fi_close(&endpoint->fid);
}

int main(int argc, char** argv) {
  counters[1] = 1;
  Pair pair;
  int is_target = open_pair(&pair, argc, argv);
  Card mine;
  atexit(close_endpoint);
  open_fabric(&pair, &mine);
  if (is_target) target_loop(&pair, serve);
  initiator_loop(&pair, find);
  return 0;
}
