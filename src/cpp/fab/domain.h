#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fab/api.h"
#include "fab/error.h"
#include "fab/memory.h"

FAB_BEGIN
// What peers may do with a region.
enum class Access : std::uint32_t { read = 16, write = 32, all = 48 };

struct Options {
  std::string auth_key{};        // that peers must prove, and to which they must answer; empty: none
  bool encrypt = false;          // links over networks: TLS 1.3. Needs an auth_key, and a link over tcp
  double peer_deadline = 10;     // seconds without a sign of life until a peer counts as lost
  bool manual_progress = false;  // true: no thread serves peers; the program calls Endpoint::progress()
  bool busy_progress = false;  // true: the thread that serves peers polls all the time, and takes a processor
  std::map<std::string, std::string> settings{};  // of providers by name: {"tcp_listen", "127.0.0.1"}
};

struct Registration {
  std::vector<Memory> buffers{};  // one region; offsets run through them in order
  Access access = Access::all;
  std::uint64_t requested_key = ~std::uint64_t{0};  // the default: the library chooses
};

// What a peer needs to use a region, and nothing more. Made from Region::remote(), or, at the peer, from
// the bytes of it. Copies are cheap.
class FAB_API Remote {
 public:
  explicit Remote(std::string_view bytes);  // throws Error(EINVAL)
  std::string bytes() const;                // to be told to peers, by whatever way there is
  std::uint64_t size() const noexcept;      // bytes of the region
  std::uint64_t key() const noexcept;

 private:
  friend class Region;
  friend class Endpoint;
  struct State;
  explicit Remote(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// Registered memory, until close() or the end of this object. What Memory keeps is kept as long. The end of
// the
// object waits for accesses that are under way, for at most Options::peer_deadline; where a peer is stopped
// in the middle of one, kept memory is not freed after that, and borrowed memory is not safe: call close()
// before it goes. Any thread may use it.
class FAB_API Region {
 public:
  Region(Region&&) noexcept = default;
  Region& operator=(Region&&) noexcept = default;
  ~Region() = default;

  Remote remote() const;  // throws Error(EBADF) after close()
  std::uint64_t size() const noexcept;
  // No access starts from the first call on. True once none is under way any more; false: `seconds` are over.
  // Idempotent.
  bool close(double seconds = kForever);

 private:
  friend class Domain;
  struct State;
  explicit Region(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// Links, the memory that is registered on them, and the thread that serves peers. Endpoints and regions
// keep it open. Any thread may use it. In a child of fork() it is the parent's, and calls throw
// Error(EBADF).
class FAB_API Domain {
 public:
  // `links`: "shm", "tcp:eth0", "shm+tcp", "verbs:mlx5_0" (docs/links.md); empty: the best that there are.
  // Throws Error: EINVAL, ENODATA if nothing can be used here.
  explicit Domain(const std::string& links = {}, Options options = {});

  // Makes memory reachable for peers. Nothing is copied. Throws Error.
  Region register_memory(const Registration& what);

 private:
  friend class Endpoint;
  friend class Region;
  struct State;
  std::shared_ptr<State> state_;
};

FAB_END
