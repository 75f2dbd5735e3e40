#include "fabric/completion/link_log.h"
#include "fabric/completion/security_log.h"
#include "python/bind.h"

namespace fab::python {
namespace {

// Lets a module of pyfab.logs write a line. One that fails keeps no other line away. Needs the GIL.
template <class... What>
void tell_note(const char* log, const What&... what) {
  try {
    py::module_::import((std::string("pyfab.logs.") + log).c_str()).attr("tell_note")(what...);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(("the log pyfab." + std::string(log)).c_str());
  }
}

// The callers of this and the next do not hold the GIL.
void log_security(std::span<const SecurityLog::Note> notes) {
  if (WithoutGil::finalizing()) return;
  const py::gil_scoped_acquire acquire;
  for (const SecurityLog::Note& note : notes)
    tell_note("security", kSecurityEvents[static_cast<std::size_t>(note.event)].kind, shown(note.source),
              note.what, note.count);
}

void log_links(std::span<const LinkLog::Note> notes, const LinkLog::LeftOut& left_out) {
  if (WithoutGil::finalizing()) return;
  const py::gil_scoped_acquire acquire;
  for (const LinkLog::Note& note : notes) tell_note("links", note.fallback, shown(note.text));
  if (left_out.ways)
    tell_note("links", false, std::to_string(left_out.ways) + " more peers were reached meanwhile");
  if (left_out.fallbacks)
    tell_note("links", true,
              std::to_string(left_out.fallbacks) + " more peers were reached over other links meanwhile");
}

py::dict security_stats(DomainCore& domain) {
  WithoutGil::run([&] { tell_logs(domain); });
  py::dict out;
  const auto counts = domain.security.counts();
  for (std::size_t i = 0; i < counts.size(); ++i) out[kSecurityEvents[i].count] = counts[i];
  return out;
}

}  // namespace

void tell_logs(DomainCore& domain) noexcept {
  if (domain.inherited()) return;  // in a child of fork() their locks may be held for ever
  domain.security.tell();
  domain.link_log.tell();
}

void bind_logs(py::module_& m) {
  SecurityLog::set_outlet(&log_security);
  LinkLog::set_outlet(&log_links);
  py::dict events;  // the kind of line that tells each count
  for (const auto& [count, kind] : kSecurityEvents) events[count] = kind;
  m.attr("security_events") = events;
  m.def("security_stats", &security_stats, py::arg("domain"),
        "Tells the log what it has not been told yet, and returns the counts of all that has happened.");
}

}  // namespace fab::python
