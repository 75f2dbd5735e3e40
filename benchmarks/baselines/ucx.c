// UCX one-sided operations, each followed by a flush of the endpoint, so that it is complete at the target.
// Links: "mapped" = posix with memory allocated by UCX, which the peer maps; "other" = posix and cma with
// private memory; "tcp". The target makes progress during a request (tcp and emulated operations need it).
//   put, get, fetch_add   one at a time
//   put_rate              kWindow puts, then one flush
#include <ucp/api/ucp.h>

#include "pair.h"

enum { kWindow = 64 };

static ucp_worker_h worker;
static ucp_ep_h endpoint;
static ucp_rkey_h key;

typedef struct {
  uint64_t buffer;
  size_t address_length, key_length;
} Card;
static Card remote;

static void good(ucs_status_t status, const char* what) {
  if (status != UCS_OK) fail(what, ucs_status_string(status));
}

static void complete(ucs_status_ptr_t request, const char* what) {
  if (request == NULL) return;
  if (UCS_PTR_IS_ERR(request)) fail(what, ucs_status_string(UCS_PTR_STATUS(request)));
  ucs_status_t status;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker);
  ucp_request_free(request);
  good(status, what);
}

static void flush(void) {
  static const ucp_request_param_t none;
  complete(ucp_ep_flush_nbx(endpoint, &none), "flush");
}

static ucs_status_ptr_t post_put(const Pair* pair, const Request* request) {
  static const ucp_request_param_t none;
  return ucp_put_nbx(endpoint, pair->buffer, request->size, remote.buffer, key, &none);
}

// A put that is still running needs no wait of its own: the flush completes it.
static void forget(ucs_status_ptr_t request) {
  if (UCS_PTR_IS_ERR(request)) fail("put", ucs_status_string(UCS_PTR_STATUS(request)));
  if (request) ucp_request_free(request);
}

static void put(const Pair* pair, const Request* request) {
  for (long i = 0; i < request->batch; i++) {
    forget(post_put(pair, request));
    flush();
  }
}

static void put_rate(const Pair* pair, const Request* request) {
  for (long i = 0; i < request->batch; i++) {
    forget(post_put(pair, request));
    if (i % kWindow == kWindow - 1 || i == request->batch - 1) flush();
  }
}

static void get(const Pair* pair, const Request* request) {
  static const ucp_request_param_t none;
  for (long i = 0; i < request->batch; i++)
    complete(ucp_get_nbx(endpoint, pair->buffer, request->size, remote.buffer, key, &none), "get");
}

static void fetch_add(const Pair* pair, const Request* request) {
  (void)pair;
  uint64_t one = 1, before;
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
                               .datatype = ucp_dt_make_contig(8),
                               .reply_buffer = &before};
  for (long i = 0; i < request->batch; i++)
    complete(ucp_atomic_op_nbx(endpoint, UCP_ATOMIC_OP_ADD, &one, 1, remote.buffer, key, &param),
             "fetch_add");
}

static Batch find(const char* what) {
  if (!strcmp(what, "put")) return put;
  if (!strcmp(what, "put_rate")) return put_rate;
  if (!strcmp(what, "get")) return get;
  if (!strcmp(what, "fetch_add")) return fetch_add;
  return NULL;
}

static void serve(const Pair* pair, const Request* request) {
  (void)request;
  while (!atomic_load_explicit(&pair->shared->finished, memory_order_relaxed)) ucp_worker_progress(worker);
}

static void open_ucx(Pair* pair) {
  int mapped = !strcmp(pair->link, "mapped"), tcp = !strcmp(pair->link, "tcp");
  setenv("UCX_TLS", tcp ? "tcp" : mapped ? "posix" : "posix,cma", 1);
  if (tcp) setenv("UCX_NET_DEVICES", "lo", 1);
  ucp_config_t* config;
  good(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                         .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64};
  ucp_context_h context;
  good(ucp_init(&params, config, &context), "ucp_init");
  ucp_config_release(config);
  ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SINGLE};
  good(ucp_worker_create(context, &single, &worker), "ucp_worker_create");

  ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                            UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                              .address = mapped ? NULL : pair->buffer,
                              .length = pair->capacity,
                              .flags = mapped ? UCP_MEM_MAP_ALLOCATE : 0};
  ucp_mem_h memory;
  good(ucp_mem_map(context, &map, &memory), "ucp_mem_map");
  ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
  good(ucp_mem_query(memory, &attributes), "ucp_mem_query");
  pair->buffer = attributes.address;
  memset(pair->buffer, 0, pair->capacity);

  ucp_address_t* address;
  void* packed_key;
  Card mine = {.buffer = (uintptr_t)pair->buffer};
  good(ucp_worker_get_address(worker, &address, &mine.address_length), "ucp_worker_get_address");
  good(ucp_rkey_pack(context, memory, &packed_key, &mine.key_length), "ucp_rkey_pack");
  send_all(pair->control, &mine, sizeof mine);
  send_all(pair->control, address, mine.address_length);
  send_all(pair->control, packed_key, mine.key_length);

  if (!receive_all(pair->control, &remote, sizeof remote)) fail("peer", "died");
  ucp_address_t* peer_address = malloc(remote.address_length);
  void* peer_key = malloc(remote.key_length);
  if (!receive_all(pair->control, peer_address, remote.address_length) ||
      !receive_all(pair->control, peer_key, remote.key_length))
    fail("peer", "died");
  ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = peer_address};
  good(ucp_ep_create(worker, &to, &endpoint), "ucp_ep_create");
  good(ucp_ep_rkey_unpack(endpoint, peer_key, &key), "ucp_ep_rkey_unpack");
}

int main(int argc, char** argv) {
  Pair pair;
  int is_target = open_pair(&pair, argc, argv);
  open_ucx(&pair);
  if (is_target) target_loop(&pair, serve);
  initiator_loop(&pair, find);
  return 0;
}
