#include "mock_verbs/faults.h"

#include <cerrno>
#include <map>
#include <optional>
#include <sstream>

namespace mock {
namespace {

const std::map<std::string, ibv_wc_status> kStatuses = {
    {"retry", IBV_WC_RETRY_EXC_ERR},  {"access", IBV_WC_REM_ACCESS_ERR},
    {"operation", IBV_WC_REM_OP_ERR}, {"request", IBV_WC_REM_INV_REQ_ERR},
    {"local", IBV_WC_LOC_PROT_ERR},   {"rnr", IBV_WC_RNR_RETRY_EXC_ERR}};

const std::map<std::string, int> kRefusals = {{"refuse", ENOMEM}, {"deny", EIO}, {"lose", ETIMEDOUT}};

std::string kind_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return "write";
    case IBV_WR_RDMA_READ:
      return "read";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "atomic";
    default:
      return "send";
  }
}

std::optional<std::uint64_t> number(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    return {};
  return std::stoull(text);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::optional<Faults::Rule> rule_of(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) return {};
  Faults::Rule rule{.kind = parts[0]};
  rule.each = parts[1].starts_with("1/");
  const auto nth = number(parts[1].substr(rule.each ? 2 : 0));
  if (!nth || *nth == 0) return {};
  rule.nth = *nth;
  if (parts.size() == 3) {
    const auto found = kStatuses.find(parts[2]);
    if (found == kStatuses.end()) return {};
    rule.status = found->second;
  }
  return rule;
}

}  // namespace

bool Faults::take(const std::string& name, const std::string& value) {
  if (name == "fail" || name == "rnr") {
    const auto rule = rule_of(name == "rnr" ? "send:" + value + ":rnr" : value);
    if (rule) rules_.push_back(*rule);
    return rule.has_value();
  }
  if (const auto error = kRefusals.find(name); error != kRefusals.end()) {
    auto rule = rule_of(value);
    if (rule) {
      rule->error = error->second;
      refusals_.push_back(*rule);
    }
    return rule.has_value();
  }
  const std::map<std::string, std::uint64_t*> numbers = {{"late_us", &late_us_},
                                                         {"reorder_us", &reorder_us_},
                                                         {"mr_limit", &mr_limit},
                                                         {"max_mr_size", &max_mr_size},
                                                         {"hold_mr", &hold_mr},
                                                         {"slow_qp_us", &slow_qp_us},
                                                         {"max_cqe", &max_cqe},
                                                         {"max_message", &max_message},
                                                         {"reads_served", &reads_served},
                                                         {"reads_begun", &reads_begun},
                                                         {"last_key_first", &last_key_first},
                                                         {"vague_errors", &vague_errors},
                                                         {"fork_status", &fork_status},
                                                         {"port_state", &port_state},
                                                         {"infiniband", &infiniband},
                                                         {"odp", &odp},
                                                         {"vendor", &vendor},
                                                         {"remove_after", &remove_after_},
                                                         {"last_receive_late_us", &last_receive_late_us},
                                                         {"last_receive_never", &last_receive_never}};
  const auto given = number(value);
  if (name == "iwarp" && given) return iwarp = *given != 0, true;
  if (name == "no_address" && value == "gid") return reached = Reached::by_gid, true;
  if (name == "no_address" && value == "lid") return reached = Reached::by_lid, true;
  const auto found = numbers.find(name);
  if (found == numbers.end() || !given) return false;
  *found->second = *given;
  return true;
}

bool Faults::set(const std::string& text) {
  Faults next;
  for (const std::string& part : split(text, ',')) {
    const std::size_t at = part.find('=');
    if (at == std::string::npos || !next.take(part.substr(0, at), part.substr(at + 1))) return false;
  }
  *this = next;
  return true;
}

ibv_wc_status Faults::judge(ibv_wr_opcode opcode) {
  const std::string kind = kind_of(opcode);
  ibv_wc_status status = IBV_WC_SUCCESS;
  for (Rule& rule : rules_) {
    if (rule.kind != "any" && rule.kind != kind) continue;
    if (rule.applies()) status = rule.status;
  }
  injected_ += status != IBV_WC_SUCCESS;
  return status;
}

bool Faults::keeps(ibv_wr_opcode opcode) { return refusal(kind_of(opcode)) != 0; }

int Faults::refusal(const std::string& call) {
  int error = 0;
  for (Rule& rule : refusals_)
    if (rule.kind == call && rule.applies()) error = rule.error;
  injected_ += error != 0;
  return error;
}

std::chrono::microseconds Faults::lateness() {
  const std::uint64_t by_chance = reorder_us_ ? random_() % reorder_us_ : 0;
  return std::chrono::microseconds(late_us_ + by_chance);
}

bool Faults::removes() { return remove_after_ != 0 && ++posted_ == remove_after_; }

}  // namespace mock
