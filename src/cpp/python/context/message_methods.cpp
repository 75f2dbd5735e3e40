#include <algorithm>

#include "python/context/context_object.h"
#include "python/context/message_stats.h"
#include "python/operations/completion_object.h"

namespace fab::python {
namespace {

constexpr long kUnorderedBit = 16;  // SendFlag.UNORDERED
constexpr long kAuthKeyBit = 16;    // InsertFlag.AUTH_KEY

std::uint64_t number_from(PyObject* object, const char* what) {
  if (PyLong_Check(object) || PyIndex_Check(object)) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object));
    const auto value = number ? PyLong_AsUnsignedLongLong(number.ptr()) : ~0ull;
    if (value != ~0ull || !PyErr_Occurred()) return value;
    PyErr_Clear();
  }
  throw Error(Errc::invalid, std::string(what) + " is an int from 0 to 2**64 - 1, not " +
                                 py::repr(object).cast<std::string>());
}

bool given(PyObject* object) noexcept { return object && object != Py_None; }

// Whether `peer` is the handle of an authorization key.
bool names_key(PyObject* flags) {
  if (!given(flags)) return false;
  const long bits = PyLong_AsLong(flags);
  if (bits == -1 && PyErr_Occurred()) throw py::error_already_set();
  if (bits & ~kAuthKeyBit)
    throw Error(Errc::bad_flags,
                "flags: a receive takes InsertFlag.AUTH_KEY, which says that `peer` is the "
                "handle of an authorization key, or none");
  return bits != 0;
}

// The arguments of a method that say which messages it is about; null, as None, if they are not given.
struct Matching {
  PyObject *tag = nullptr, *ignore = nullptr, *peer = nullptr, *group = nullptr, *flags = nullptr;
};

// Which messages a receive takes: those of `peer` with its group, those of `group` from any peer, or those of
// peers that came under an authorization key.
MatchRule rule_from(const ContextHandle& handle, const Matching& matching) {
  const auto [tag, ignore, peer, group, flags] = matching;
  MatchRule rule;
  if (given(tag)) {
    rule.tagged = true;
    rule.tag = number_from(tag, "a tag");
    if (given(ignore)) rule.ignore = number_from(ignore, "ignore");
  }
  const PeerId from = given(peer) ? peer_from(peer) : kNoPeer;
  if (names_key(flags)) {
    if (from >= kNoPeer >> 32)
      throw Error(Errc::invalid, "InsertFlag.AUTH_KEY: peer must be the handle of an authorization key");
    rule.key = &handle.context->handles().key_under(static_cast<std::uint32_t>(from + 1));
  } else if (from != kNoPeer) {
    const PeerTarget target = handle.context->handles().target(from);
    if (!handle.context->peers().contains(target.index))
      throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(from)) +
                                     " is not in the address vector (never inserted, or removed)");
    rule.source = target.index;
    rule.group = target.group;
  }
  if (given(group)) {
    const std::uint64_t number = number_from(group, "a group");
    if (number > handle.context->handles().max_group_id())
      throw Error(Errc::invalid, "group " + std::to_string(number) + ": this domain has groups up to " +
                                     std::to_string(handle.context->handles().max_group_id()));
    if (rule.group != 0 && rule.group != number)
      throw Error(Errc::invalid, "the peer's handle names group " + std::to_string(rule.group) +
                                     ", and group=" + std::to_string(number) + "; give one of them");
    rule.group = static_cast<std::uint32_t>(number);
  }
  return rule;
}

// What goes along with a message; null, as None, if it is not given.
struct Label {
  PyObject *tag, *data;
};

Transfer message_of(const ContextHandle& handle, const LocalBuffer& local, PeerId peer, const Label& label,
                    Delivery delivery) {
  const auto [tag, data] = label;
  Transfer transfer{};
  transfer.op = OpCode::send;
  transfer.delivery = delivery;
  transfer.length = local.nbytes;
  transfer.local = local.data;
  if (!local.pieces.empty()) {
    transfer.local_pieces = local.pieces.data();
    transfer.piece_count = static_cast<std::uint16_t>(local.pieces.size());
  }
  transfer.remote = handle.context->handles().target(peer).group;
  if (given(tag)) {
    transfer.key = number_from(tag, "a tag");
    transfer.flags |= transfer_flag::kTagged;
  }
  if (given(data)) {
    transfer.data = number_from(data, "remote data");
    transfer.flags |= transfer_flag::kRemoteData;
  }
  return transfer;
}

struct Levels {
  Delivery delivery;
  bool unordered;
};

// Reads the bits of Delivery and of SendFlag.
Levels levels_from(PyObject* flags) {
  if (!given(flags)) return {Delivery::transmit, false};
  const long bits = PyLong_AsLong(flags);
  if (bits == -1 && PyErr_Occurred()) throw py::error_already_set();
  if (!(bits & kUnorderedBit)) return {delivery_from(flags), false};
  if (bits == kUnorderedBit) return {Delivery::transmit, true};
  const py::int_ rest(bits & ~kUnorderedBit);
  return {delivery_from(rest.ptr()), true};
}

struct SendArguments {
  PyObject *buffer, *to;
  Label label;
  PyObject *context, *flags;
};

PyObject* start_send(PyObject* self, const SendArguments& arguments) {
  const auto& [buffer, to, label, context, flags] = arguments;
  OperationObject* operation = nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    if (!handle.finished->empty()) handle.finished->drain();
    LocalBuffer local = LocalBuffer::of(buffer, false);
    const PeerId peer = peer_from(to);
    const auto [delivery, unordered] = levels_from(flags);
    if (delivery == Delivery::commit)
      throw Error(Errc::bad_flags,
                  "Delivery.COMMIT: a message goes to no region that could be durable; use a put");
    Transfer transfer = message_of(handle, local, peer, label, delivery);
    if (unordered) transfer.flags |= transfer_flag::kUnordered;
    operation = prepare_operation(handle, {OpCode::send}, {peer, transfer.remote, transfer.key, nullptr},
                                  local.nbytes, context);
    operation->tagged = given(label.tag);
    transfer.operation = &operation->core;
    begin(*operation, 1, context_number(handle, context), handle.queue.get());
    post_operation(handle, {&transfer, 1}, *operation, {&local, 1});
    return reinterpret_cast<PyObject*>(operation);
  } catch (...) {
    set_python_error();
    Py_XDECREF(reinterpret_cast<PyObject*>(operation));
    return nullptr;
  }
}

// What a receive takes. With `least_room` it takes many messages, until so few bytes are left.
struct Wanted {
  MatchRule rule;
  std::uint64_t least_room = 0;
};

// Begins a receive into `buffer` and passes it to `post`, which throws if it posted nothing.
template <class Post>
PyObject* start_receive(ContextHandle& handle, PyObject* buffer, const Wanted& wanted, PyObject* context,
                        const Post& post) {
  const auto& [rule, least_room] = wanted;
  OperationObject* operation = nullptr;
  try {
    if (!handle.finished->empty()) handle.finished->drain();
    LocalBuffer local = LocalBuffer::of(buffer, true);
    if (least_room != 0 && !local.pieces.empty())
      throw Error(Errc::invalid, "a receive for many messages takes one buffer, not a list");
    Receive receive;
    receive.length = local.nbytes;
    receive.local = local.data;
    if (!local.pieces.empty()) {
      receive.pieces = local.pieces.data();
      receive.piece_count = static_cast<std::uint16_t>(local.pieces.size());
    }
    receive.rule = rule;
    receive.least_room = least_room;
    operation = prepare_operation(handle, {OpCode::receive}, {rule.source, rule.group, rule.tag, nullptr},
                                  local.nbytes, context);
    operation->tagged = rule.tagged;
    receive.operation = &operation->core;
    begin(*operation, 1, context_number(handle, context), handle.queue.get());
    try {
      if (local.nbytes >= kLongWork || !post(receive, true)) {
        const WithoutGil without_gil;
        post(receive, false);
      }
    } catch (...) {
      operation->core.withdraw();
      operation->core.settle(Errc::canceled, 0);
      throw;
    }
    std::vector<LocalBuffer> kept;
    kept.push_back(std::move(local));
    launched(*operation, std::move(kept));
    return reinterpret_cast<PyObject*>(operation);
  } catch (...) {
    set_python_error();
    Py_XDECREF(reinterpret_cast<PyObject*>(operation));
    return nullptr;
  }
}

PyObject* post_receive(PyObject* self, PyObject* buffer, const Matching& matching, PyObject* context,
                       PyObject* least) {
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    const Wanted wanted{.rule = rule_from(handle, matching),
                        .least_room = given(least) ? number_from(least, "min_multi_recv") : 0};
    return start_receive(handle, buffer, wanted, context, [&](const Receive& receive, bool at_once) {
      if (at_once) return handle.context->inbox().try_receive(receive);
      handle.context->inbox().receive(receive);
      return true;
    });
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* send_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"local", "peer", "data", "context", "flags"};
  PyObject* a[5];
  if (!parse_arguments("send", names, 2, {args, nargs, kwnames}, a)) return nullptr;
  return start_send(self, {a[0], a[1], {nullptr, a[2]}, a[3], a[4]});
}

PyObject* tsend_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"local", "peer", "tag", "data", "context", "flags"};
  PyObject* a[6];
  if (!parse_arguments("tsend", names, 3, {args, nargs, kwnames}, a)) return nullptr;
  if (a[2] == Py_None) {
    PyErr_SetString(PyExc_TypeError, "tsend() needs a tag; send() goes without");
    return nullptr;
  }
  return start_send(self, {a[0], a[1], {a[2], a[3]}, a[4], a[5]});
}

PyObject* recv_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"local", "peer", "context", "group", "min_multi_recv", "flags"};
  PyObject* a[6];
  if (!parse_arguments("recv", names, 1, {args, nargs, kwnames}, a)) return nullptr;
  return post_receive(self, a[0], {.peer = a[1], .group = a[3], .flags = a[5]}, a[2], a[4]);
}

PyObject* trecv_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"local",   "tag",   "ignore",         "peer",
                                      "context", "group", "min_multi_recv", "flags"};
  PyObject* a[8];
  if (!parse_arguments("trecv", names, 2, {args, nargs, kwnames}, a)) return nullptr;
  if (a[1] == Py_None) {
    PyErr_SetString(PyExc_TypeError, "trecv() needs a tag; recv() goes without");
    return nullptr;
  }
  return post_receive(self, a[0], {a[1], a[2], a[3], a[5], a[7]}, a[4], a[6]);
}

PyObject* completion_of(const Inbox::Waiting& found) {
  const MessageHead& head = found.head;
  return make_completion({.length = head.length,
                          .data = head.data,
                          .tag = head.tag,
                          .source = found.source.id,
                          .flags = completion_flag::kMessage | (head.tagged ? completion_flag::kTagged : 0) |
                                   completion_flag::kRecv |
                                   (head.has_data ? completion_flag::kRemoteData : 0) | found.source.flags},
                         Py_None);
}

// A message that other receives do not get any more (FI_CLAIM of fi_tagged(3)).
struct ClaimedMessage {
  py::object owner;  // the Context
  std::uint64_t number;
  MatchRule rule;  // its peer, group and tag
  py::object completion;

  // Debian's clang makes no aggregates in place.
  ClaimedMessage(py::object from, std::uint64_t claim, MatchRule met, py::object told)
      : owner(std::move(from)), number(claim), rule(met), completion(std::move(told)) {}
  ClaimedMessage(const ClaimedMessage&) = delete;
  ClaimedMessage& operator=(const ClaimedMessage&) = delete;
  ContextHandle& handle() const { return context_handle(owner.ptr()); }
  ~ClaimedMessage() {
    if (number == 0) return;
    try {
      if (handle().shared->closed) return;
      const WithoutGil without_gil;
      handle().context->inbox().discard_claimed(number);
    } catch (const std::exception&) {
      return;  // nobody can be told here; in a child of fork() the message belongs to the parent
    }
  }
  std::uint64_t take() {
    handle().check_open();
    if (number == 0) throw Error(Errc::bad_state, "the message was received or discarded before");
    return std::exchange(number, 0);
  }
  py::object receive(const py::object& local, const py::object& context) {
    const std::uint64_t claim = take();
    bool there = true;
    PyObject* operation = start_receive(
        handle(), local.ptr(), {rule}, context.ptr(), [&](const Receive& receive, bool at_once) {
          if (at_once) return false;
          there = handle().context->inbox().receive_claimed(claim, receive);
          if (!there) throw Error(Errc::peer_lost, "the message is gone with its sender");
          return true;
        });
    if (!operation) {
      if (there) number = claim;  // nothing was posted
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(operation);
  }
  void discard() {
    const std::uint64_t claim = take();
    const WithoutGil without_gil;
    handle().context->inbox().discard_claimed(claim);
  }
};

template <Inbox::Look look>
PyObject* look_method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const names[] = {"tag", "ignore", "peer", "group", "flags"};
  PyObject* a[5];
  constexpr const char* kName = look == Inbox::Look::only    ? "peek"
                                : look == Inbox::Look::claim ? "claim"
                                                             : "discard";
  if (!parse_arguments(kName, names, 0, {args, nargs, kwnames}, a)) return nullptr;
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    const MatchRule rule = rule_from(handle, {a[0], a[1], a[2], a[3], a[4]});
    std::optional<Inbox::Waiting> found;
    {
      const WithoutGil without_gil;
      found = handle.context->inbox().look(rule, look);
    }
    if (!found)
      throw Error(Errc::no_message,
                  std::string(kName) + "(): no message that fits waits here (it may still come)");
    const auto completion = py::reinterpret_steal<py::object>(completion_of(*found));
    if (look != Inbox::Look::claim) return py::object(completion).release().ptr();
    auto message = std::make_unique<ClaimedMessage>(
        py::reinterpret_borrow<py::object>(self), found->claim,
        MatchRule{.tag = found->head.tag, .group = found->head.group, .tagged = found->head.tagged},
        completion);
    return py::cast(std::move(message)).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* cancel_method(PyObject* self, PyObject* context) {
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, object] : handle.objects)
      if (object.ptr() == context) numbers.push_back(number.cast<std::uint64_t>());
    if (PyLong_Check(context)) {
      const auto number = PyLong_AsUnsignedLongLong(context);
      if (PyErr_Occurred())
        PyErr_Clear();
      else if (number < kNoContext)
        numbers.push_back(number);
    }
    const auto wanted = [&](const Operation& operation) {
      return std::ranges::find(numbers, operation.completion().context) != numbers.end();
    };
    bool found = false;
    {
      const WithoutGil without_gil;
      found = handle.context->inbox().cancel_oldest(wanted);
    }
    if (!found)
      throw Error(Errc::not_found,
                  "no posted receive has this context: it was never posted, or has met its message");
    handle.finished->drain();
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

}  // namespace

PyObject* inject_message(PyObject* self, PyObject* buffer, PyObject* to, PyObject* tag, PyObject* data) {
  try {
    ContextHandle& handle = context_handle(self);
    handle.check_open();
    const LocalBuffer local = LocalBuffer::of(buffer, false);
    const PeerId peer = peer_from(to);
    if (const auto limit = handle.domain->domain().info().inject_size; local.nbytes > limit)
      throw Error(Errc::message_size, "inject of " + std::to_string(local.nbytes) +
                                          " bytes; inject_size is " + std::to_string(limit) + ", use send()");
    Operation operation;
    Transfer transfer = message_of(handle, local, peer, {tag, data}, Delivery::inject);
    transfer.operation = &operation;
    operation.begin({.context = kNoContext, .flags = completion_flags(OpCode::send)});
    post_all(handle, peer, {{&transfer, 1}, false}, operation);
    if (!operation.done()) {
      const WithoutGil without_gil;
      handle.context->wait([&] { return operation.done(); }, {});
    }
    if (const Errc error = operation.completion().error; error != Errc::ok) {
      raise_failure({OpCode::send, error, local.nbytes, transfer.remote, transfer.key, peer},
                    handle.context.get());
      return nullptr;
    }
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

void bind_messages(py::module_& m) {
  py::class_<ClaimedMessage>(
      m, "ClaimedMessage",
      "A message that other receives do not see: to be received or discarded, once. Discarded "
      "when it is forgotten.")
      .def_property_readonly(
          "completion", [](const ClaimedMessage& message) { return message.completion; },
          "nbytes, tag, data and source of the message.")
      .def("recv", &ClaimedMessage::receive, py::arg("local"), py::arg("context") = py::none(),
           "Starts to receive it into `local`; returns an Operation.")
      .def("discard", &ClaimedMessage::discard);
}

PyMethodDef message_methods[] = {
    {"send", method(send_method), METH_FASTCALL | METH_KEYWORDS,
     "send($self, /, local, peer, data=None, context=None, flags=None)\n--\n\n"
     "Starts to send the bytes of `local` as one message; returns an Operation.\n\n"
     "local is kept alive and must not change until it is done. peer: a handle, maybe with a group or "
     "receive context. "
     "data: 64 bits that go along.\n"
     "flags: Delivery.TRANSMIT, the default: once done, it arrives whatever becomes of this process; "
     "DELIVERY: the peer's library\nhas taken it in; INJECT: `local` may be used again, and the message goes "
     "with this process unless that closes the endpoint.\nMessages to one peer match in the order of "
     "sending, "
     "but those with SendFlag.UNORDERED."},
    {"tsend", method(tsend_method), METH_FASTCALL | METH_KEYWORDS,
     "tsend($self, /, local, peer, tag, data=None, context=None, flags=None)\n--\n\nsend() with a 64-bit "
     "tag."},
    {"recv", method(recv_method), METH_FASTCALL | METH_KEYWORDS,
     "recv($self, /, local, peer=pyfab.ADDR_UNSPEC, context=None, group=None, min_multi_recv=None, "
     "flags=None)\n--\n\n"
     "Starts to receive a message without tag into `local`; returns an Operation, whose result has nbytes, "
     "data and "
     "source.\n\n"
     "peer: only from there; with flags=InsertFlag.AUTH_KEY the handle of an authorization key: only from "
     "those who came "
     "under it. group: of that peer group (default: the peer's, else 0). min_multi_recv: takes "
     "one message "
     "after another, each with\n"
     "an entry in the queue that tells its `offset`, until fewer bytes than this are free. A message that is "
     "longer than "
     "`local` ends in\nTruncatedError, with `local` full."},
    {"trecv", method(trecv_method), METH_FASTCALL | METH_KEYWORDS,
     "trecv($self, /, local, tag, ignore=0, peer=pyfab.ADDR_UNSPEC, context=None, group=None, "
     "min_multi_recv=None, flags=None)\n--\n\n"
     "recv() of a tagged message. ignore: bits of the tag that do not matter."},
    {"peek", method(look_method<Inbox::Look::only>), METH_FASTCALL | METH_KEYWORDS,
     "peek($self, /, tag=None, ignore=0, peer=pyfab.ADDR_UNSPEC, group=None, flags=None)\n--\n\n"
     "What the oldest waiting message that fits says of itself; FabricError FI_ENOMSG if there is none."},
    {"claim", method(look_method<Inbox::Look::claim>), METH_FASTCALL | METH_KEYWORDS,
     "claim($self, /, tag=None, ignore=0, peer=pyfab.ADDR_UNSPEC, group=None, flags=None)\n--\n\n"
     "peek() that hides the message from everybody else and returns it."},
    {"discard", method(look_method<Inbox::Look::discard>), METH_FASTCALL | METH_KEYWORDS,
     "discard($self, /, tag=None, ignore=0, peer=pyfab.ADDR_UNSPEC, group=None, flags=None)\n--\n\n"
     "peek() that throws the message away."},
    {"cancel", cancel_method, METH_O,
     "cancel($self, context, /)\n--\n\n"
     "Takes back the oldest posted receive with this context; FabricError FI_ENOENT if there is none."},
    {"message_stats", message_stats, METH_NOARGS,
     "message_stats($self, /)\n--\n\nStatistics of the queues of posted receives and of waiting messages: "
     "present, longest and mean length, and how often the receive or the message came first."},
    {"_link_stats", link_stats, METH_NOARGS,
     "_link_stats($self, /)\n--\n\nFor each link that carried messages: sends by form, receives, and how "
     "many "
     "messages "
     "waited for a receive."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace fab::python
