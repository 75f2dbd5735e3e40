#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/crypto/key_pair.h"
#include "base/memory/address_range.h"
#include "base/network/poller.h"
#include "base/queues/linked_list.h"
#include "fabric/memory/slice.h"
#include "fabric/messages/link_counters.h"
#include "fabric/path_counts.h"
#include "fabric/segment/segment.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/name.h"
#include "fabric/types/sync_types.h"
#include "fabric/types/types.h"

// The four interfaces that a provider implements: Provider, Domain, Endpoint, Path. Everything else is
// shared.
namespace fab {

class AccessObserver;
class AddressVector;
class CompletionQueue;
class EventOutlet;
class ExtensionMaker;
class LinkLog;
class MemoryRegion;
class ReceiveQueue;
class SecurityLog;

// Choices of the user that reach a provider; each provider reads those that it knows.
struct DomainOptions {
  std::uint32_t mr_mode = 0;
  std::string auth_key;  // empty: none
  // Links over networks are encrypted. Needs an authorization key for every endpoint, and a link over tcp.
  bool encrypt = false;
  bool strict_keys = false;
  bool manual_progress = false;   // no thread: peers are served in calls of the program only
  bool busy_progress = false;     // the thread polls and never sleeps; nothing under manual progress
  bool log_links = false;         // each way to a peer is told in the log of links, not only fallbacks
  bool shared_receives = true;    // false: every receive names its source
  std::uint32_t mr_key_size = 8;  // bytes of a key, 4 to 8
  std::optional<CacheModel> non_coherent;  // emulate memory that needs synchronisation
  double peer_deadline = 10;               // seconds without a sign of life until a peer counts as lost
  // Provider options by name, for instance {"shm_copy", "cma"}, {"tcp_listen", "127.0.0.1"}. Unknown names
  // are refused.
  std::map<std::string, std::string> settings;
  // The value, or `fallback` where it is not set.
  std::string setting(const std::string& name, const std::string& fallback) const {
    const auto found = settings.find(name);
    return found == settings.end() ? fallback : found->second;
  }
  // The setting, which must be one of these values, of which the first is the default.
  std::string choice(const std::string& name, std::initializer_list<const char*> values) const {
    std::string given = setting(name, *values.begin()), all;
    for (const char* const value : values) {
      if (given == value) return given;
      const bool last = value == *(values.end() - 1);
      all += std::string(all.empty() ? "" : last ? " or " : ", ") + value;
    }
    throw Error(Errc::invalid, name + " is \"" + given + "\"; it must be " + all);
  }
  // Whether the setting has the value `second`. The default is `first`, the only other value.
  bool chosen(const std::string& name, const char* first, const char* second) const {
    return choice(name, {first, second}) == second;
  }
};

// What every domain of a process has, lent to the providers that it opens.
struct DomainServices {
  Segment& segment;
  RegionTable& regions;
  const DomainOptions& options;
  const std::uint8_t (&domain_id)[16];
  SecurityLog& security;
  bool linked = false;                 // the domain has other links as well
  AccessObserver* observer = nullptr;  // of regions that are kObserved; for Session::Services
  // What the ids of endpoints of a network are bound to.
  std::shared_ptr<KeyPairOnce> key_pair{};
};

struct Lingering;
// Has taken messages that count as sent, and would go with this side while their receiver has not read them.
class Lingerer : public Linked<Lingering> {
 public:
  // Sends what it can; whether it has to stay for the receiver.
  virtual bool lingers() noexcept = 0;

 protected:
  ~Lingerer() = default;
};

struct Noticing;
// Holds notices that peers have left here of puts that are done, and that get no answer.
class NoticeHolder : public Linked<Noticing> {
 public:
  virtual bool note() noexcept = 0;  // what is there now, if there is anything
  // Reads as far as the slice goes. Whether all that were noted are read.
  virtual bool take_noted() noexcept = 0;

 protected:
  ~NoticeHolder() = default;
};

// What a context lends to the endpoints that it drives. The endpoint, its paths and all that is lent here are
// used under the context's lock only; everything outlives the endpoint.
struct EndpointServices {
  std::uint16_t context;  // index within the endpoint that the user opened: Part::context
  // Number of the context within the domain: its index in BoardHeader::contexts and
  // SegmentHeader::context_rights.
  std::uint16_t context_slot;
  const AuthKeys& keys;  // of which peers must prove one; their secrets may change from turn to turn
  Poller& poller;        // for descriptors that shall wake the context
  CompletionQueue& completions;
  EventOutlet& events;
  const AddressVector& peers;
  ReceiveQueue& receives;
  LinkBook& links;
  Slice& slice;  // of the present turn: what moves bytes spends it, and stops where it is spent
  // To be called when the state() of a path stops being ok: whoever holds the path lets go of it, the context
  // before its turn ends. Does no more than note it.
  std::function<void()> on_path_ended;
  std::function<void()>
      wake_domain;  // wakes those who wait for a counter of the domain (after raise_counters)
  ExtensionMaker* extensions = nullptr;  // of sessions; null: they have none
  // Seconds without a sign of life until a stream counts as lost that is one of several ways to its peer.
  double shared_deadline = std::numeric_limits<double>::infinity();
  // A context that closes gives the lingerers in this list some time, and lets others have its lock
  // meanwhile.
  LinkedList<Lingerer, Lingering>* lingerers = nullptr;
  // The holders in this list are read before the entry of a region goes that their notices may name.
  LinkedList<NoticeHolder, Noticing>* notice_holders = nullptr;
  LinkLog* link_log = nullptr;  // null: nobody is told
};

// Whether a peer can be reached, and in words why or why not ("same node, memory mapped", "other host").
struct Reach {
  bool ok = false;
  std::string why;
  Errc error = Errc::unreachable;  // where not ok: or too_many_files, no_memory
  bool expected = false;           // where not ok: nobody can mend it, as the peer is elsewhere or has gone
};

// How the bytes to one peer go, for reports.
struct PathReport {
  std::string link;  // "shm.0"
  std::string how;   // "mapped", "cross-memory attach", "ring", "127.0.0.1:4711"
};

// The way from one endpoint to one peer.
class Path {
 public:
  virtual ~Path() = default;
  // What is known of a region whose key transfers will name: puts to and gets from one that is kHidden wait
  // for devices. Links that need not know leave it.
  virtual void hint(const RemoteRegion&) {}
  // Takes a prefix of `batch` and returns its length; short means full: make progress, then post the rest.
  // What was taken starts in order and settles its operation once, maybe before this returns. Whatever is
  // wrong with a transfer is its outcome. A batch is at most a slice, or one transfer.
  virtual std::size_t post(std::span<const Transfer> batch) noexcept = 0;
  // ok, or why nothing more will move on this path: then all that was taken has settled, and the context
  // opens a new one.
  virtual Errc state() const noexcept = 0;
  // Whether nothing is under way, so that nothing is lost when the path is destroyed.
  virtual bool idle() const noexcept = 0;
  virtual PathCounts counts() const noexcept = 0;
  // The number of the oldest transfer that has not settled. The first one posted has number 1, the last one
  // number counts().posted, and what is returned is beyond that if all have settled. Transfers settle in any
  // order: a message may wait for its receiver while puts behind it have long been answered.
  virtual std::uint64_t oldest() const noexcept = 0;
  virtual PathReport report() const = 0;
  // Gives the way up, for all who share it, where it may be a rail: what was taken settles with an error,
  // nothing more is stored here, and state() tells. Not to be called from within the path.
  virtual void cut() noexcept {}
};

// Asks the user before there is a path. Used under the context's lock.
class PathPolicy {
 public:
  // What the user has to be asked before Endpoint::connect() with the same arguments; empty: nothing. The
  // question is asked without the lock, and its answer handed to answer(), for the next connect().
  using Question = std::function<std::vector<double>()>;
  virtual Question question(PeerId id, const Name& peer, std::uint16_t target,
                            std::size_t auth_index) const = 0;
  virtual void answer(const Name& peer, std::uint16_t target, std::size_t auth_index,
                      const std::vector<double>& shares) = 0;

 protected:
  ~PathPolicy() = default;
};

// A local port, driven by one context.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // This endpoint's parts of the name, one per link.
  virtual std::vector<Part> parts() const = 0;
  // Packed socket addresses (socket_name.h) where peers can call; none on links that have no such.
  virtual std::vector<std::string> socket_names() const = 0;
  // Whether context `target` of the peer can be reached, under the authorization key of this index in
  // EndpointServices::keys. No network I/O; may look at this machine.
  virtual Reach reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const = 0;
  // Throws Error(unreachable) with the reason. `id` is handed back in completions. Ways under different keys
  // have nothing in common.
  virtual std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target,
                                        std::size_t auth_index) = 0;
  // Null where nobody is asked. Lives as long as the endpoint.
  virtual PathPolicy* policy() noexcept { return nullptr; }
  // Moves what can be moved without waiting, as far as the slice goes; true if anything moved. Sides that
  // share the slice take turns in being first.
  virtual bool progress() noexcept = 0;
  // Before the context sleeps on its poller. False: there is work, do not sleep. True: whatever comes now
  // wakes the poller.
  virtual bool arm() noexcept = 0;
  // Region `index` is closing: stop touching its memory before this returns; requests in the middle end with
  // an error.
  virtual void forget(std::uint32_t index) noexcept = 0;
  // Ends every stream and path that was proven with a secret which has been removed from
  // EndpointServices::keys.
  virtual void end_removed_keys() noexcept = 0;
};

// What the device of one link knows of memory here: ranges that it has now, was ever given, and had already
// when they were needed. All zero for a link whose transfers need no registration.
struct LinkRegistrations {
  std::string link;
  std::uint64_t held = 0, made = 0, reused = 0;
};

// Memory as a device knows it that reaches it without processors. Used from any thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Region `index` is closing, or what may be reached of it changed: devices stop touching its memory before
  // this returns, and are told anew when somebody asks. After Endpoint::forget(), where that is called.
  virtual void forget(std::uint32_t index) noexcept = 0;
  // Whether a device reaches memory that processors do not (DmaBuf::hides). Tries it.
  virtual bool reaches_hidden(AddressRange range, bool stores) noexcept = 0;
};

class Domain {
 public:
  virtual ~Domain() = default;
  virtual const Info& info() const noexcept = 0;
  // In the order of the links. From any thread.
  virtual std::vector<LinkRegistrations> registrations() const = 0;
  // Null where processors move all bytes. Lives as long as the domain.
  virtual DeviceMemory* device_memory() noexcept { return nullptr; }
  // Judges the parts of this domain's links; may outlive it.
  virtual PartCheck part_check() const = 0;
  virtual std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) = 0;
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::string_view name() const noexcept = 0;
  // All that could be opened, also what cannot be used here, with the reason. Throws std::system_error only
  // where descriptors or memory have run out.
  virtual std::vector<Info> discover() const = 0;
  // Why discovery finds nothing, where it does: what to look at.
  virtual std::string problem() const = 0;
  // `link` is the tag of its parts ("tcp.0"). Throws Error naming what is wrong and what to do.
  virtual std::unique_ptr<Domain> open(const Info& info, std::string link,
                                       const DomainServices& services) const = 0;
};

}  // namespace fab
