#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace mock {

// What goes wrong, by choice. PYFAB_MOCK_VERBS holds it for a whole process, mock_verbs_set() changes it:
//
// clang-format off
//   fail=write:17             the 17th request of that kind fails: send, write, read, atomic or any of them
//   fail=any:1/100:access     each 100th; the status may be retry (done by the peer, its acknowledgement
//                             lost), access, operation, request (refused by the peer), local or rnr (not done)
//   vague_errors=1            an error is told under the oldest request without a completion, as some drivers do
//   rnr=1/100                 each 100th send meets a peer that is not ready
//   refuse=reg_mr:1/10        calls fail with ENOMEM: alloc_pd, reg_mr, create_qp, create_cq, create_srq,
//                             comp_channel, post_send, post_recv, get_devices, query_device, query_port,
//                             event_channel, create_id, bind, listen, resolve, resolve_route, connect, accept
//   deny=bind:1/1             ... with EIO
//   lose=route:1              rdma_cm tells that what was asked of it has failed: address, route, call; of a
//                             silent_call nothing is ever told, and at an answer the caller's side ends
//   lose=send:2               such a request never leaves its queue pair, as with soft-iWARP: or write, read
//   late_us=500               each completion comes so late
//   reorder_us=2000           ... or up to so late, by chance: queue pairs overtake each other
//   slow_qp_us=5000           making a queue pair takes so long
//   max_cqe=512               completions in a queue; before the device is listed
//   mr_limit=64               memory keys at a time
//   last_key_first=1          the key that was freed last is given again first, as some drivers do; otherwise
//                             none is, so that the late use of a key is noticed
//   max_mr_size=1048576       bytes of a region
//   hold_mr=1048576           regions of so many bytes are not made until this is chosen no more
//   max_message=1048576       bytes of a work request
//   reads_served=1            reads and atomics of a peer that a queue pair has under way; before it is listed
//   reads_begun=1             ... and of its own
//   last_receive_late_us=500  so late is the event that a failed queue pair takes no shared receive any more
//   last_receive_never=1      that event never comes
//   remove_after=100          the device is removed when so many work requests have been posted
//   vendor=6450548            of the device; that of soft-iWARP
//   fork_status=0             what ibv_is_fork_initialized() says
//   port_state=1              of the port, as in ibv_port_state
//   infiniband=1              the port's link layer is that of InfiniBand
//   odp=12                    what on-demand paging can do: ibv_odp_transport_cap_bits
//   iwarp=1                   the device is one for iWARP; before it is first listed
//   no_address=gid            the port has no IP address but a GID (RoCE), or "lid" (InfiniBand); before that
// clang-format on
class Faults {
 public:
  struct Rule {
    std::string kind;
    std::uint64_t nth = 0;
    bool each = false;
    ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
    int error = 0;  // of a call
    std::uint64_t seen = 0;
    bool applies() {
      ++seen;
      return each ? seen % nth == 0 : seen == nth;
    }
  };

  // Returns false, and changes nothing, if the text is none of the above.
  bool set(const std::string& text);
  // The status that a request which is about to be sent shall have; IBV_WC_SUCCESS for most.
  ibv_wc_status judge(ibv_wr_opcode opcode);
  // Whether this request never leaves its queue pair.
  bool keeps(ibv_wr_opcode opcode);
  // The error with which this call fails; 0 for most.
  int refusal(const std::string& call);
  // By how much the next completion is late.
  std::chrono::microseconds lateness();
  // Counts a posted request. Returns whether the device is removed by it.
  bool removes();

  std::uint64_t injected() const { return injected_; }
  std::uint64_t mr_limit = UINT64_MAX, max_mr_size = UINT64_MAX, hold_mr = UINT64_MAX, max_message = 8u << 20;
  std::uint64_t last_receive_late_us = 0, last_receive_never = 0;
  std::uint64_t reads_served = 16, reads_begun = 16;
  std::uint64_t max_cqe = 1 << 20;
  std::uint64_t port_state = IBV_PORT_ACTIVE, infiniband = 0, odp = 0, vendor = 0x6d6f63;
  std::uint64_t slow_qp_us = 0, last_key_first = 0, vague_errors = 0, fork_status = IBV_FORK_UNNEEDED;
  bool iwarp = false;
  enum class Reached : std::uint8_t { by_ip, by_gid, by_lid } reached = Reached::by_ip;

 private:
  bool take(const std::string& name, const std::string& value);

  std::vector<Rule> rules_, refusals_;
  std::uint64_t late_us_ = 0, reorder_us_ = 0, remove_after_ = 0, posted_ = 0, injected_ = 0;
  std::mt19937 random_{1};
};

}  // namespace mock
