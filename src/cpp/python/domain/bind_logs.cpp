#include "fabric/completion/link_log.h"
#include "fabric/completion/security_log.h"
#include "python/bind.h"

namespace fab::python {
namespace {

// Tells the log `pyfab.security`. The caller does not hold the GIL.
void log_security(std::span<const SecurityLog::Note> notes) {
  if (WithoutGil::finalizing()) return;
  const py::gil_scoped_acquire acquire;
  try {
    const py::object tell = py::module_::import("pyfab.logs.security").attr("tell_note");
    for (const SecurityLog::Note& note : notes)
      tell(kSecurityEvents[static_cast<std::size_t>(note.event)].kind, shown(note.source), note.what,
           note.count);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the log pyfab.security");
  }
}

// Tells the log `pyfab.links`. The caller does not hold the GIL.
void log_links(std::span<const LinkLog::Note> notes, const LinkLog::LeftOut& left_out) {
  if (WithoutGil::finalizing()) return;
  const py::gil_scoped_acquire acquire;
  const auto tell = [](bool fallback, const std::string& text) {
    try {
      py::module_::import("pyfab.logs.links").attr("tell_note")(fallback, shown(text));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the log pyfab.links");
    }
  };
  for (const LinkLog::Note& note : notes) tell(note.fallback, note.text);
  if (left_out.ways) tell(false, std::to_string(left_out.ways) + " more peers were reached meanwhile");
  if (left_out.fallbacks)
    tell(true, std::to_string(left_out.fallbacks) + " more peers were reached over other links meanwhile");
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
