#include "fabric/memory/atomics.h"

#include <rdma/fi_atomic.h>

#include <array>

#include "libfabric/endpoint/arguments.h"

namespace fab::fi {
namespace {

constexpr std::size_t kMaxTransfers = 4 * kMaxPiecesOfCall;

struct Update {
  OpCode op = OpCode::atomic;
  std::span<const fi_ioc> operands{}, compares{}, results{};
  std::span<const fi_rma_ioc> targets{};
  fi_addr_t peer = FI_ADDR_UNSPEC;
  fi_datatype type = FI_UINT8;
  fi_op what = FI_SUM;
  void* context = nullptr;
  bool silent = false;
};

// Walks through a list of arrays, whose elements are counted as one.
template <class Array>
class ElementCursor final {
 public:
  explicit ElementCursor(std::span<const Array> arrays) : arrays_(arrays) { skip_ended(); }
  bool at_end() const noexcept { return arrays_.empty(); }
  std::size_t here() const noexcept { return arrays_.front().count - done_; }
  std::size_t done() const noexcept { return done_; }
  const Array& array() const noexcept { return arrays_.front(); }
  void advance(std::size_t elements) noexcept {
    done_ += elements;
    skip_ended();
  }

 private:
  void skip_ended() noexcept {
    while (!arrays_.empty() && done_ == arrays_.front().count) {
      arrays_ = arrays_.subspan(1);
      done_ = 0;
    }
  }
  std::span<const Array> arrays_;
  std::size_t done_ = 0;
};

std::byte* at(const ElementCursor<fi_ioc>& cursor, std::size_t size) noexcept {
  if (cursor.at_end()) return nullptr;
  auto* const array = static_cast<std::byte*>(cursor.array().addr);
  return array ? array + cursor.done() * size : nullptr;
}

std::size_t elements_of(const auto& arrays) noexcept {
  std::size_t all = 0;
  for (const auto& array : arrays) all += array.count;
  return all;
}

// Cuts an update where one of its arrays ends, so that each transfer has one run of each.
class Cutter final {
 public:
  explicit Cutter(const Update& update, std::size_t size)
      : size_(size),
        operands_(update.operands),
        compares_(update.compares),
        results_(update.results),
        targets_(update.targets) {}

  bool at_end() const noexcept { return targets_.at_end(); }
  void next(Transfer& transfer) noexcept {
    std::size_t run = targets_.here();
    for (const auto* cursor : {&operands_, &compares_, &results_})
      if (!cursor->at_end()) run = std::min(run, cursor->here());
    transfer.local = at(operands_, size_);
    transfer.compare = at(compares_, size_);
    transfer.result = at(results_, size_);
    transfer.remote = targets_.array().addr + targets_.done() * size_;
    transfer.key = targets_.array().key;
    transfer.length = run * size_;
    for (auto* cursor : {&operands_, &compares_, &results_})
      if (!cursor->at_end()) cursor->advance(run);
    targets_.advance(run);
  }

 private:
  const std::size_t size_;
  ElementCursor<fi_ioc> operands_, compares_, results_;
  ElementCursor<fi_rma_ioc> targets_;
};

void check(const Update& update) {
  const bool reads = update.what == FI_ATOMIC_READ;
  if (update.type < 0 || update.type >= kDataTypes || update.what < 0 || update.what >= kAtomicOps ||
      !atomic_supported(static_cast<AtomicOp>(update.what), static_cast<DataType>(update.type)))
    throw Error(Errc::not_supported, "this atomic operation does not exist for this type (fi_query_atomic)");
  for (const std::size_t count : {update.operands.size(), update.compares.size(), update.results.size()})
    check_pieces(count);
  if (update.targets.empty() || update.targets.size() > kMaxPiecesOfCall)
    throw Error(Errc::invalid, "an atomic names 1 to " + std::to_string(kMaxPiecesOfCall) +
                                   " arrays of remote memory (rma_iov_limit)");
  const std::size_t elements = elements_of(update.targets);
  const auto fits = [&](std::span<const fi_ioc> arrays, bool needed) {
    return !needed || elements_of(arrays) == elements;
  };
  if (!fits(update.operands, !reads) || !fits(update.compares, update.op == OpCode::compare_atomic) ||
      !fits(update.results, update.op != OpCode::atomic))
    throw Error(Errc::invalid, "the arrays of one atomic have different numbers of elements");
}

// Copies what the program may change at once, and names the copy instead.
void keep(std::span<const fi_ioc>& arrays, std::size_t size, std::byte (&room)[kInjectBytes], fi_ioc& copy) {
  if (arrays.empty()) return;
  std::array<iovec, kMaxPiecesOfCall> pieces;
  for (std::size_t i = 0; i < arrays.size(); ++i) pieces[i] = {arrays[i].addr, arrays[i].count * size};
  const Local local = injected(room, {pieces.data(), arrays.size()});
  copy = {local.buffer, local.length / size};
  arrays = {&copy, 1};
}

ssize_t update_remote(Endpoint& endpoint, Update update, std::uint64_t flags) {
  check_flags(flags, kSendFlags & ~FI_REMOTE_CQ_DATA);
  if (update.what == FI_ATOMIC_READ) update.operands = {};  // it has none, whatever stands there
  check(update);
  const std::size_t size = size_of(static_cast<DataType>(update.type));
  NewOp op(endpoint);
  fi_ioc copies[2]{};
  if (flags & FI_INJECT) {
    keep(update.operands, size, op->room().sent, copies[0]);
    keep(update.compares, size, op->room().compared, copies[1]);
  }
  std::array<Transfer, kMaxTransfers> transfers;
  std::size_t count = 0;
  for (Cutter cutter(update, size); !cutter.at_end(); ++count) {
    Transfer& transfer = transfers[count] = {};
    cutter.next(transfer);
    transfer.op = update.op;
    transfer.atomic = static_cast<AtomicOp>(update.what);
    transfer.type = static_cast<DataType>(update.type);
    transfer.delivery = write_level(flags);
  }
  if (count == 0) throw Error(Errc::invalid, "an atomic of no elements");
  const std::uint64_t direction = update.op == OpCode::atomic ? FI_WRITE : FI_READ;
  return endpoint.post(
      op.release(),
      {.context = update.context, .flags = flags, .kind = FI_ATOMIC | direction, .silent = update.silent},
      update.peer, {transfers.data(), count});
}

int valid(fi_datatype type, fi_op what, bool fetches, bool compares, std::size_t* count) noexcept {
  if (type < 0 || type >= kDataTypes || what < 0 || what >= kAtomicOps) return -FI_EOPNOTSUPP;
  const auto op = static_cast<AtomicOp>(what);
  const auto element = static_cast<DataType>(type);
  if (!atomic_supported(op, element) || needs_compare(op) != compares) return -FI_EOPNOTSUPP;
  if (op == AtomicOp::atomic_read && !fetches) return -FI_EOPNOTSUPP;
  *count = kMaxAtomicBytes / size_of(element);
  return 0;
}

// The functions of fi_atomic(3).
struct AtomicCalls {
  // A call without flags: those of the endpoint.
  static ssize_t plain(fid_ep* ep, Update update, std::size_t count, std::uint64_t address, std::uint64_t key,
                       std::uint64_t more = 0) {
    return boundary(FI_LOG_EP_DATA, "fi_atomic", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      const fi_rma_ioc target{.addr = address, .count = count, .key = key};
      update.targets = {&target, 1};
      return update_remote(endpoint, update, endpoint.send_flags() | more);
    });
  }
  static ssize_t with_flags(fid_ep* ep, const fi_msg_atomic& msg, Update update, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, "fi_atomicmsg", [&] {
      update.operands = {msg.msg_iov, msg.iov_count};
      update.targets = {msg.rma_iov, msg.rma_iov_count};
      update.peer = msg.addr;
      update.type = msg.datatype;
      update.what = msg.op;
      update.context = msg.context;
      return update_remote(endpoint_of(ep), update, flags);
    });
  }
  static fi_ioc array(const void* elements, std::size_t count) noexcept {
    return {const_cast<void*>(elements), count};
  }

  static ssize_t writev(fid_ep* ep, const fi_ioc* operands, void**, std::size_t count, fi_addr_t to,
                        std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op, void* context) {
    const std::span given(operands, count);
    return plain(ep, {.operands = given, .peer = to, .type = type, .what = op, .context = context},
                 elements_of(given), address, key);
  }
  static ssize_t write(fid_ep* ep, const void* operand, std::size_t count, void*, fi_addr_t to,
                       std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op, void* context) {
    const fi_ioc one = array(operand, count);
    return writev(ep, &one, nullptr, 1, to, address, key, type, op, context);
  }
  static ssize_t writemsg(fid_ep* ep, const fi_msg_atomic* msg, std::uint64_t flags) {
    return with_flags(ep, *msg, {}, flags);
  }
  static ssize_t inject(fid_ep* ep, const void* operand, std::size_t count, fi_addr_t to,
                        std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op) {
    const fi_ioc one = array(operand, count);
    return plain(ep, {.operands = {&one, 1}, .peer = to, .type = type, .what = op, .silent = true}, count,
                 address, key, FI_INJECT);
  }
  static ssize_t readwritev(fid_ep* ep, const fi_ioc* operands, void**, std::size_t count, fi_ioc* results,
                            void**, std::size_t result_count, fi_addr_t to, std::uint64_t address,
                            std::uint64_t key, fi_datatype type, fi_op op, void* context) {
    const std::span<const fi_ioc> found(results, result_count);
    return plain(ep,
                 {.op = OpCode::fetch_atomic,
                  .operands = {operands, count},
                  .results = found,
                  .peer = to,
                  .type = type,
                  .what = op,
                  .context = context},
                 elements_of(found), address, key);
  }
  static ssize_t readwrite(fid_ep* ep, const void* operand, std::size_t count, void*, void* result, void*,
                           fi_addr_t to, std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                           void* context) {
    const fi_ioc one = array(operand, count);
    fi_ioc found = array(result, count);
    return readwritev(ep, &one, nullptr, 1, &found, nullptr, 1, to, address, key, type, op, context);
  }
  static ssize_t readwritemsg(fid_ep* ep, const fi_msg_atomic* msg, fi_ioc* results, void**,
                              std::size_t count, std::uint64_t flags) {
    return with_flags(ep, *msg, {.op = OpCode::fetch_atomic, .results = {results, count}}, flags);
  }
  static ssize_t compwritev(fid_ep* ep, const fi_ioc* operands, void**, std::size_t count,
                            const fi_ioc* compares, void**, std::size_t compare_count, fi_ioc* results,
                            void**, std::size_t result_count, fi_addr_t to, std::uint64_t address,
                            std::uint64_t key, fi_datatype type, fi_op op, void* context) {
    const std::span<const fi_ioc> found(results, result_count);
    return plain(ep,
                 {.op = OpCode::compare_atomic,
                  .operands = {operands, count},
                  .compares = {compares, compare_count},
                  .results = found,
                  .peer = to,
                  .type = type,
                  .what = op,
                  .context = context},
                 elements_of(found), address, key);
  }
  static ssize_t compwrite(fid_ep* ep, const void* operand, std::size_t count, void*, const void* compare,
                           void*, void* result, void*, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                           fi_datatype type, fi_op op, void* context) {
    const fi_ioc one = array(operand, count), expected = array(compare, count);
    fi_ioc found = array(result, count);
    return compwritev(ep, &one, nullptr, 1, &expected, nullptr, 1, &found, nullptr, 1, to, address, key, type,
                      op, context);
  }
  static ssize_t compwritemsg(fid_ep* ep, const fi_msg_atomic* msg, const fi_ioc* compares, void**,
                              std::size_t compare_count, fi_ioc* results, void**, std::size_t count,
                              std::uint64_t flags) {
    return with_flags(
        ep, *msg,
        {.op = OpCode::compare_atomic, .compares = {compares, compare_count}, .results = {results, count}},
        flags);
  }
  static int writevalid(fid_ep*, fi_datatype type, fi_op op, std::size_t* count) {
    return valid(type, op, false, false, count);
  }
  static int readwritevalid(fid_ep*, fi_datatype type, fi_op op, std::size_t* count) {
    return valid(type, op, true, false, count);
  }
  static int compwritevalid(fid_ep*, fi_datatype type, fi_op op, std::size_t* count) {
    return valid(type, op, true, true, count);
  }

  static fi_ops_atomic calls;
};

fi_ops_atomic AtomicCalls::calls = {.size = sizeof(fi_ops_atomic),
                                    .write = write,
                                    .writev = writev,
                                    .writemsg = writemsg,
                                    .inject = inject,
                                    .readwrite = readwrite,
                                    .readwritev = readwritev,
                                    .readwritemsg = readwritemsg,
                                    .compwrite = compwrite,
                                    .compwritev = compwritev,
                                    .compwritemsg = compwritemsg,
                                    .writevalid = writevalid,
                                    .readwritevalid = readwritevalid,
                                    .compwritevalid = compwritevalid};

}  // namespace

fi_ops_atomic& atomic_calls() noexcept { return AtomicCalls::calls; }

}  // namespace fab::fi
