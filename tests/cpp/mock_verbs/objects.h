#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mock_verbs/faults.h"
#include "mock_verbs/wire.h"

// What a program defines that lets memory lack, and does not mean the device's: told with true when the
// device begins to do something on a thread, and with false at the end.
extern "C" [[gnu::weak]] void mock_verbs_works(bool begins);

// The macros of the header would rename the functions that are defined here.
#undef ibv_reg_mr
#undef ibv_query_port

// A device that exists in this process only. Its objects are those of the headers with what the device knows
// of them; one mutex guards all, and one thread is the device.
namespace mock {

using Clock = std::chrono::steady_clock;

struct Pd : ibv_pd {
  int users = 0;  // regions, shared receive queues and queue pairs
};

struct Mr : ibv_mr {
  int access = 0;
  std::uint64_t shown = 0;  // the address that requests give to the first byte
  std::byte* at(std::uint64_t address) const { return static_cast<std::byte*>(addr) + (address - shown); }
};

// Of a queue pair that has an id for itself alone, because rdma_cm knows nothing of it.
struct Own {
  int door = -1;        // where the peer's queue pair connects
  bool there = false;   // the address of the peer is that of this machine's device
  bool joined = false;  // the peer has said who it is
  JoinBody says{};
};

struct Cq;
struct Qp;
struct Id;

struct Channel : ibv_comp_channel {
  std::deque<Cq*> notices;
};

struct Cq : ibv_cq {
  struct Entry {
    ibv_wc wc;
    Qp* of;
    std::uint32_t retires;  // work requests whose places in the queue are free once this was polled
    bool receive;
    bool solicited;
  };
  std::deque<Entry> entries;
  bool armed = false, only_solicited = false;
  std::uint32_t told = 0;  // notices that were read
  int users = 0;
};

struct Receive {
  std::uint64_t id = 0;
  std::vector<ibv_sge> places{};
};

struct Srq : ibv_srq {
  std::deque<Receive> receives;
  std::uint32_t most = 0, used = 0;
  std::set<Qp*> waiting;  // queue pairs with a message that found no receive
  int users = 0;
};

// A work request of a send queue.
struct Work {
  std::uint64_t id = 0;
  ibv_wr_opcode opcode{};
  unsigned flags = 0;
  std::vector<ibv_sge> places{};
  std::string inlined{};
  Header header{};
  ibv_wc_status verdict = IBV_WC_SUCCESS;  // that the fault injected; told in place of the peer's
  std::optional<ibv_wc_status> answer{};
};

struct Request {
  Header header;
  std::string bytes;
  std::optional<Clock::time_point> not_ready_since{};
};

struct Qp : ibv_qp {
  Id* id = nullptr;
  ibv_qp_cap cap{};
  bool all_signaled = false;
  std::deque<Work> waiting, outstanding;
  std::uint32_t sends_used = 0, receives_used = 0, unretired = 0;
  std::optional<std::uint64_t> oldest_unretired;  // id of the first request since the last completion
  unsigned reads = 0;                             // reads and atomics under way
  std::deque<Receive> receives;
  std::uint8_t not_ready_timer = 0;
  // What peers may do in the protection domain; by rdma_cm all.
  unsigned rights = ~0u;
  // Events of it that were read and not acknowledged.
  unsigned unacknowledged = 0;
  Clock::time_point last_due{};  // of a delayed completion; the next is no earlier
};

struct CmEvents : rdma_event_channel {
  std::deque<struct CmEvent*> queue;
};

struct CmEvent : rdma_cm_event {
  char said[kPrivateBytes];
};

struct Id : rdma_cm_id {
  enum class State { idle, listening, greeting, asked, calling, accepted, joining, connected, closed };
  State state = State::idle;
  std::uint64_t number = 0;  // by which the device's thread knows it
  int fd = -1;
  Id* listener = nullptr;  // until the caller was told of
  std::string in, out;
  std::size_t sent = 0;  // of `out`
  bool writes = false;   // whether the poller waits for room
  CallBody peer{};       // what the other side said
  unsigned begins = 1;   // reads and atomics that this side may have under way
  std::uint8_t not_ready_retries = 7;
  std::deque<Request> requests;  // of the peer
  std::optional<Own> own{};
};

// A completion that comes later.
struct Delayed {
  Clock::time_point due;
  Cq* to;
  Cq::Entry entry;
};

struct World {
  std::mutex mutex;
  Faults faults;
  ibv_device device{};
  verbs_context context{};
  bool opened = false, removed = false, forked = false;
  Faults::Reached reached = Faults::Reached::by_ip;
  int wake = -1, poller = -1;
  std::map<std::uint32_t, Mr*> regions;  // by key
  std::map<std::uint64_t, Id*> ids;
  std::set<Id*> busy;  // with something to do for the device
  std::list<Delayed> delayed;
  std::set<Srq*> shared_receives;
  std::deque<ibv_async_event> async;
  // Queue pairs that have failed and whose last shared receive is still to be told of, and when.
  std::map<Qp*, Clock::time_point> last;
  std::condition_variable acknowledged;
  std::uint32_t next_key = 0x1100, next_queue_pair = 0x11;
  std::uint64_t next_id = 1;
  unsigned most_reads = 0;                                 // that a queue pair has had under way
  std::uint64_t longest = 0;                               // bytes of a request
  std::uint64_t read = 0, written = 0;                     // bytes that reads and writes have moved
  std::uint64_t longest_writable = 0;                      // bytes of a region that peers may write
  int relaxed = 0;                                         // registrations so far with relaxed ordering
  int traffic_class = -1, ack_timeout = -1, retries = -1;  // that were last asked for
  std::vector<std::uint32_t> free_keys;
  std::condition_variable faults_changed;
  int held = 0;  // registrations that wait for it
  int domains = 0, queue_pairs = 0;
  std::set<Cq*> completion_queues;
};

World& world();  // is never destroyed, because the device's thread does not end
class Lock : public std::unique_lock<std::mutex> {
 public:
  explicit Lock(std::mutex& mutex) : std::unique_lock<std::mutex>(mutex) {
    if (mock_verbs_works) mock_verbs_works(true);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (mock_verbs_works) mock_verbs_works(false);
  }
};

// device.cpp
int fail(int error);  // sets errno, returns -1
void wake_device();
void remove_device();
void tell(const ibv_async_event& event);
Qp* queue_pair_of(const ibv_async_event& event);  // null: it is about something else

// memory.cpp: whether the memory is there and was copied. Memory that went away is no crash.
bool copy(void* to, const void* from, std::size_t length);
// The region with this key, if it holds the bytes and gives the rights.
Mr* find_region(std::uint32_t key, std::uint64_t address, std::uint64_t length, const ibv_pd* pd, int rights);

// completions.cpp
void complete(Qp& qp, bool receive, const ibv_wc& wc, bool solicited = false);
void deliver_due(Clock::time_point now);
void forget_completions(Qp& qp);

// requester.cpp
void advance(Qp& qp);
void on_answer(Qp& qp, const Header& header, const std::string& bytes);
void to_error(Qp& qp);

// responder.cpp
void serve(Id& id, Clock::time_point now);
// When a request that waits for a receive is given up.
std::optional<Clock::time_point> gives_up(const Id& id);
// `rights`: that the memory has to give.
ibv_wc_status scatter(const Qp& qp, const std::vector<ibv_sge>& places, const std::string& bytes, int rights);

// connections.cpp
void tell(Id& id, rdma_cm_event_type type, int status = 0);
void on_packet(Id& id, const Header& header, const std::string& bytes);
void on_end(Id& id);

// queue_pairs.cpp
constexpr std::uint16_t kLid = 7;
void on_door(Id& id);
void on_join(Id& id, const JoinBody& body);
int step(Qp& qp, const ibv_qp_attr& wanted, int mask);  // returns an error number

// engine.cpp
void start_device();
void watch(Id& id);    // id.fd
void unwatch(Id& id);  // and close it
void say(Id& id, const Header& header, const void* bytes, std::size_t length);
void flush(Id& id);

}  // namespace mock
