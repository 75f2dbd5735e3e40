#include "python/operations/failure.h"

#include <string>

#include "python/operations/operation_object.h"

namespace fab::python {
namespace {

// Of the path that failed: to open the next one for a text would call a peer that may just have refused this
// side.
std::string way_to(Context& context, PeerId peer) {
  try {
    const auto report = WithoutGil::run([&] { return context.last_report(peer); });
    return report ? " over " + report->link + " (" + report->how + ")" : std::string();
  } catch (const std::exception&) {
    return {};  // the endpoint is closed by now
  }
}

}  // namespace

const char* verb(OpCode op) noexcept {
  switch (op) {
    case OpCode::write:
      return "write";
    case OpCode::read:
      return "read";
    case OpCode::atomic:
      return "atomic";
    case OpCode::fetch_atomic:
      return "fetch_atomic";
    case OpCode::compare_atomic:
      return "compare_atomic";
    case OpCode::send:
      return "send";
    case OpCode::receive:
      return "receive";
    default:  // a user starts no others
      return "operation";
  }
}

py::object make_exception(const Failure& failure, Context* context) {
  const bool sends = failure.op == OpCode::send, receives = failure.op == OpCode::receive,
             puts = failure.op == OpCode::write || failure.op == OpCode::atomic;
  std::string text = std::string(verb(failure.op)) + " of " + std::to_string(failure.nbytes) + " bytes";
  if (sends || receives)
    text += ", tag " + std::to_string(failure.key) + "," + (sends ? " to peer " : " from peer ") +
            (failure.peer == kNoPeer ? "any" : std::to_string(failure.peer));
  else
    text += " at " + std::to_string(failure.remote) + " of key " + std::to_string(failure.key) +
            (puts ? " to peer " : " from peer ") + std::to_string(static_cast<std::int64_t>(failure.peer));
  if (context && !receives && failure.error != Errc::peer_lost && failure.error != Errc::canceled)
    text += way_to(*context, failure.peer);
  return make_error(failure.error, text + " failed: " + describe(failure.error));
}

void raise_failure(const Failure& failure, Context* context) {
  const py::object exception = make_exception(failure, context);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace fab::python
