// Every call fails once: a scenario over a link is run again and again, each time in a process of its own, in
// which the next call of a kind fails. Then the same process runs it again, without a fault.
//
//   failing_calls [--link LINK] [--call NAME] [--every K] [--seed S] [--nth N]
//
// --every K takes one of K calls, by the seed. The link verbs:mock0 needs the device in the process to be
// preloaded: scripts/failing-calls does that.
//
// Each run has to end in time, with errors that say what failed or none, with an outcome for every operation,
// without a leak, and with the descriptors and threads that a run without a fault leaves.
#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "base/deadline.h"
#include "fabric/completion/log_thread.h"
#include "failing_calls/calls.h"
#include "failing_calls/device_calls.h"
#include "failing_calls/scenario.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif

#ifdef __SANITIZE_ADDRESS__
// Who ends in std::terminate shows where.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "handle_abort=1";
}
#endif

namespace fab::test {
namespace {

constexpr int kTimeLimit = 150;  // seconds of a run; several operations may wait for a silent peer before

struct Report {
  Findings armed, later;                // of the run with a fault, and of the one after it
  std::array<std::uint64_t, 128> made;  // calls of each kind
  std::size_t descriptors, threads;     // that the process has when all is closed
  int device_objects;
  bool leak;
  int stage;  // 0: the run with a fault; 1: the one after it; 2: the checks at the end; 3: done
};

struct Choice {
  std::string link, call;
  std::uint64_t every = 1, seed = 0, nth = 0;
};

std::size_t count_entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

void show_stack(int) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_print_stack_trace();
#endif
}

// Asks every thread of the process but `not_this` for its stack.
void show_stacks(pid_t pid, pid_t not_this) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    const int thread = std::stoi(task.path().filename());
    if (thread == not_this) continue;
    ::syscall(SYS_tgkill, pid, thread, SIGUSR2);
    ::poll(nullptr, 0, 300);  // so that stacks are not mixed
  }
}

[[noreturn]] void child(const std::string& link, const CallKind* kind, std::uint64_t nth, std::size_t threads,
                        Report& report) {
  std::signal(SIGUSR2, show_stack);
  arm_calls(kind, nth);
  run_scenario(link, report.armed);
  disarm_calls();
  for (std::size_t i = 0; i < call_kinds().size(); ++i) report.made.at(i) = calls_made(call_kinds()[i]);
  report.stage = 1;
  run_scenario(link, report.later);
  LogThread::finish();  // its thread belongs to the process, and begins when there is something to tell
  report.stage = 2;
  report.descriptors = count_entries("/proc/self/fd");
  report.device_objects = device_objects();
  // A thread that was joined may be seen for a moment.
  const auto deadline = Deadline::in_seconds(5);
  do report.threads = count_entries("/proc/self/task");
  while (report.threads > threads && !deadline.passed());
  if (report.threads > threads) show_stacks(::getpid(), ::getpid());
#ifdef __SANITIZE_ADDRESS__
  report.leak = __lsan_do_recoverable_leak_check() != 0;
#endif
  report.stage = 3;
  ::_exit(0);
}

void end_hanging(pid_t pid) {
  show_stacks(pid, 0);
  ::kill(pid, SIGKILL);
}

class Campaign {
 public:
  explicit Campaign(Choice choice) : choice_(std::move(choice)) {
    void* const shared =
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    report_ = static_cast<Report*>(shared);
  }

  bool operator()() {
    for (const char* const link : kLinks) {
      if (!choice_.link.empty() && choice_.link != link) continue;
      if (link == std::string("verbs:mock0") && !::dlsym(RTLD_DEFAULT, "mock_verbs_objects")) continue;
      link_ = link;
      descriptors_ = threads_ = 0;
      if (!run(nullptr, 0)) return false;
      made_ = report_->made;
      descriptors_ = report_->descriptors;
      threads_ = report_->threads;
      for (const CallKind& kind : call_kinds())
        if (choice_.call.empty() || choice_.call == kind.name) each(kind);
    }
    std::printf("%llu runs, %llu with a finding\n", runs_, bad_);
    return bad_ == 0;
  }

 private:
  // How many there were of this kind; in the last run, or in one without a fault.
  static std::uint64_t of(const std::array<std::uint64_t, 128>& made, const CallKind& kind) {
    return made.at(static_cast<std::size_t>(&kind - call_kinds().data()));
  }

  void each(const CallKind& kind) {
    if (of(made_, kind) == 0) return;
    std::map<std::string, unsigned> errors;
    std::uint64_t points = 0, beyond = 0;
    const std::uint64_t first =
        choice_.nth ? choice_.nth : std::minstd_rand(choice_.seed + ++kinds_)() % choice_.every + 1;
    // How many calls there are depends on which thread comes first, so one run that had fewer is not the end.
    for (std::uint64_t nth = first; beyond < 3; nth += choice_.every) {
      if (choice_.every > 1 && nth > of(made_, kind)) break;
      const bool good = run(&kind, nth);
      if (good && of(report_->made, kind) < nth) {
        ++beyond;
      } else {
        ++points;
        ++errors[report_->armed.errors[0] ? report_->armed.errors.data() : "succeeds"];
      }
      if (choice_.nth) break;
    }
    if (points == 0) return;
    std::printf("%-14s %-18s %-14s %5llu points\n", link_.c_str(), kind.name,
                kind.error ? strerrorname_np(kind.error) : "", static_cast<unsigned long long>(points));
    for (const auto& [error, count] : errors) std::printf("    %4u  %s\n", count, error.c_str());
    std::fflush(stdout);
  }

  // One run; false: it had a finding, which was printed.
  bool run(const CallKind* kind, std::uint64_t nth) {
    ++runs_;
    *report_ = {};
    std::fflush(nullptr);
    FILE* const said = std::tmpfile();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(::fileno(said), 1);
      ::dup2(::fileno(said), 2);
      child(link_, kind, nth, threads_, *report_);
    }
    const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    pollfd ended{handle, POLLIN, 0};
    const bool hangs = ::poll(&ended, 1, kTimeLimit * 1000) == 0;
    if (hangs) end_hanging(pid);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ::close(handle);
    const std::string why = judge(kind, hangs, status);
    if (!why.empty()) {
      ++bad_;
      std::printf(
          "FINDING %s: %s %s, call %llu, stage %d: %s\n  errors: %s\n", link_.c_str(),
          kind ? kind->name : "without a fault", kind && kind->error ? strerrorname_np(kind->error) : "",
          static_cast<unsigned long long>(nth), report_->stage, why.c_str(), report_->armed.errors.data());
      show(said);
    }
    std::fclose(said);
    return why.empty();
  }

  std::string judge(const CallKind* kind, bool hangs, int status) const {
    if (hangs) return "hangs";
    if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
    if (report_->stage != 3) return "ended with status " + std::to_string(WEXITSTATUS(status));
    if (report_->armed.wrong[0]) return report_->armed.wrong.data();
    if (report_->later.wrong[0])
      return std::string("without a fault afterwards: ") + report_->later.wrong.data();
    const bool lasts = kind && kind->lasts && report_->later.errors == report_->armed.errors;
    if (report_->later.errors[0] && !lasts)
      return std::string("without a fault afterwards: ") + report_->later.errors.data();
    if (report_->device_objects) return "leaves objects of the device";
    if (report_->leak) return "leaks memory";
    if (threads_ && report_->threads > threads_) return "leaves a thread";
    if (descriptors_ && report_->descriptors > descriptors_) return "leaves a descriptor";
    return {};
  }

  static void show(FILE* said) {
    std::rewind(said);
    char line[512];
    for (int lines = 0; lines < 60 && std::fgets(line, sizeof line, said); ++lines)
      std::printf("  | %s", line);
    std::fflush(stdout);
  }

  const Choice choice_;
  Report* report_;
  std::string link_;
  std::size_t descriptors_ = 0, threads_ = 0;  // that a run without a fault leaves
  std::array<std::uint64_t, 128> made_{};      // calls of each kind in it
  unsigned long long runs_ = 0, bad_ = 0, kinds_ = 0;
};

}  // namespace
}  // namespace fab::test

int main(int count, char** arguments) {
  fab::test::Choice choice;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name == "--link") choice.link = value;
    if (name == "--call") choice.call = value;
    if (name == "--every") choice.every = std::stoull(value);
    if (name == "--seed") choice.seed = std::stoull(value);
    if (name == "--nth") choice.nth = std::stoull(value);
  }
  return fab::test::Campaign(choice)() ? 0 : 1;
}
