#include "python/context/context_object.h"

#include "base/locks/mutex.h"
#include "python/operations/failure.h"

namespace fab::python {
namespace {

void add_methods(py::handle type, PyMethodDef* methods) {
  for (; methods->ml_name; ++methods) {
    PyObject* method = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), methods);
    if (!method) throw py::error_already_set();
    type.attr(methods->ml_name) = py::reinterpret_steal<py::object>(method);
  }
}

std::unique_ptr<ContextHandle> open_context(const std::shared_ptr<DomainCore>& domain, std::uint16_t index,
                                            const DomainCore::EndpointTraits& traits,
                                            const std::shared_ptr<AddressVector>& peers,
                                            const std::shared_ptr<CompletionQueue>& queue) {
  auto handle = std::make_unique<ContextHandle>();
  handle->domain = domain;
  handle->queue = queue;
  handle->manual = domain->options().manual_progress;
  handle->context = WithoutGil::run([&] { return domain->open_context(index, traits, peers, queue); });
  handle->origin =
      std::make_shared<const Origin>(Origin{handle->context, handle->finished, nullptr, handle->manual});
  handle->context->driver().on_callbacks = [finished = handle->finished] {
    if (WithoutGil::finalizing()) return;
    const py::gil_scoped_acquire acquire;
    finished->drain();
  };
  return handle;
}

}  // namespace

ContextHandle& context_handle(PyObject* object) {
  return *reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder().value_ptr<ContextHandle>();
}

// NOLINTNEXTLINE(bugprone-exception-escape): it throws only if memory runs out
ContextHandle::~ContextHandle() {
  if (!tally) close();
  // The domain may end here, and wait for its thread, which may want the GIL.
  const WithoutGil without_gil;
  origin.reset();
  context.reset();
  domain.reset();
}

void ContextHandle::close() { close_all({this}); }

void ContextHandle::close_all(const std::vector<ContextHandle*>& handles) {
  std::vector<ContextHandle*> open;
  std::vector<std::shared_ptr<Context>> contexts;
  open.reserve(handles.size());
  contexts.reserve(handles.size());
  for (ContextHandle* const handle : handles) {
    // The context is null if the domain could not open one.
    if (!handle->context || handle->shared->closed.exchange(true)) continue;
    open.push_back(handle);
    contexts.push_back(handle->context);
  }
  if (open.empty()) return;
  {
    // The progress thread may hold a lock that this needs, and wait for the GIL.
    const WithoutGil without_gil;
    open.front()->domain->contexts().close(contexts);
  }
  for (ContextHandle* const handle : open) handle->end();
}

// Comes after everything outstanding has settled.
void ContextHandle::end() {
  finished->drain();
  decltype(shared->interrupted) settled;
  const LockGuard lock(shared->mutex);
  settled.swap(shared->interrupted);
}

std::unique_ptr<ContextHandle> ContextHandle::scope(bool never_waits) const {
  check_open();
  auto handle = std::make_unique<ContextHandle>();
  handle->domain = domain;
  handle->context = context;
  handle->queue = queue;
  handle->finished = finished;
  handle->objects = objects;
  handle->kept = kept;
  handle->shared = shared;
  handle->manual = manual;
  handle->tally = std::make_shared<Tally>();
  handle->no_wait = never_waits;
  handle->origin = std::make_shared<const Origin>(Origin{context, finished, handle->tally, manual});
  return handle;
}

bool ContextHandle::flush_scope(Deadline deadline, bool callbacks) {
  if (callbacks && finished->inside())
    throw Error(Errc::busy, "flush(callbacks=True) inside a callback would wait for itself; use flush()");
  struct Flush {
    Tally& tally;
    const std::uint64_t goal = tally.begin_flush();
    ~Flush() { tally.end_flush(); }
  } const flush{*tally};
  const std::uint64_t goal = flush.goal;
  if (!tally->ended(goal) &&
      !wait_interruptibly(
          [&](Deadline until) { return context->wait([&] { return tally->ended(goal); }, until); }, deadline))
    return false;
  finished->drain();
  // Another thread may be calling callbacks at this moment.
  if (callbacks && !tally->called_all(goal) &&
      !wait_interruptibly([&](Deadline until) { return tally->wait_called(goal, until); }, deadline))
    return false;
  if (const auto failure = tally->take_failure(goal)) {
    raise_failure(*failure, context.get());
    throw py::error_already_set();
  }
  return true;
}

[[gnu::hot]] PeerId peer_from(PyObject* object) {
  if (!PyLong_CheckExact(object) && !PyIndex_Check(object))
    throw Error(Errc::invalid, std::string("a peer is the int that av.insert() returned, not a ") +
                                   Py_TYPE(object)->tp_name);
  const auto number = PyLong_CheckExact(object) ? py::reinterpret_borrow<py::object>(object)
                                                : py::reinterpret_steal<py::object>(PyNumber_Index(object));
  if (!number) throw py::error_already_set();
  const auto value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == ~0ull && PyErr_Occurred()) {
    PyErr_Clear();
    throw Error(Errc::invalid,
                "peer " + py::str(number).cast<std::string>() + " is not a handle of the address vector");
  }
  return value;
}

[[gnu::hot]] Target Target::of(PeerId peer, PyObject* object) {
  if (const RemoteView* view = remote_view(object)) return {peer, view->remote(), view->region->key, view};
  if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 2) {
    const auto number = [&](Py_ssize_t i, const char* what) {
      const auto value =
          PyLong_Check(PyTuple_GET_ITEM(object, i)) || PyIndex_Check(PyTuple_GET_ITEM(object, i))
              ? py::reinterpret_steal<py::object>(PyNumber_Index(PyTuple_GET_ITEM(object, i)))
              : py::object();
      const auto bits = value ? PyLong_AsUnsignedLongLong(value.ptr()) : ~0ull;
      if (!value || (bits == ~0ull && PyErr_Occurred())) {
        PyErr_Clear();
        throw Error(Errc::invalid,
                    std::string("in (address, key) the ") + what + " is not an int from 0 to 2**64 - 1");
      }
      return static_cast<std::uint64_t>(bits);
    };
    return {peer, number(0, "address"), number(1, "key"), nullptr};
  }
  throw Error(
      Errc::invalid,
      std::string("the remote side is a RemoteRegion (mr.remote of the peer) or (address, key), not a ") +
          Py_TYPE(object)->tp_name);
}

void introduce(ContextHandle& handle, const Target& target) {
  if (!target.view || (target.view->region->access & access::kHidden) == 0) return;
  WithoutGil::run([&] { return handle.context->hint(target.peer, *target.view->region); });
}

void check_fit(const LocalBuffer& local, const Target& target, const char* what) {
  const RemoteView* view = target.view;
  if (!view) return;
  if (local.nbytes > view->nbytes || (!view->contiguous && local.nbytes != view->nbytes))
    throw Error(local.nbytes > view->nbytes ? Errc::bounds : Errc::invalid,
                std::string(what) + ": the local memory has " + std::to_string(local.nbytes) +
                    " bytes and the remote array (" + view->describe() + ") " + std::to_string(view->nbytes) +
                    "; slice either");
  if (!local.dtype || local.dtype == view->dtype.ptr()) return;
  const auto itemsize = itemsize_of(local.dtype);
  if (itemsize == 1 || view->itemsize == 1) return;  // raw bytes fit any dtype
  const int equal = PyObject_RichCompareBool(local.dtype, view->dtype.ptr(), Py_EQ);
  if (equal < 0) throw py::error_already_set();
  if (!equal)
    throw Error(Errc::invalid, std::string(what) + ": the local array has dtype " +
                                   py::str(py::handle(local.dtype)).cast<std::string>() +
                                   " and the remote one " + py::str(view->dtype).cast<std::string>() +
                                   "; convert with astype(), or pass view('u1') to move raw bytes");
}

Delivery delivery_from(PyObject* flags) {
  if (!flags || flags == Py_None) return Delivery::delivery;
  const long bits = PyLong_AsLong(flags);
  if (bits == -1 && PyErr_Occurred()) throw py::error_already_set();
  switch (bits) {
    case 0:
      return Delivery::delivery;
    case 1:
      return Delivery::inject;
    case 2:
      return Delivery::transmit;
    case 4:
      return Delivery::delivery;
    case 8:
      return Delivery::commit;
    default:
      throw Error(Errc::bad_flags,
                  "flags " + std::to_string(bits) +
                      ": an operation takes one of Delivery.INJECT, TRANSMIT, DELIVERY, COMMIT");
  }
}

std::uint64_t context_number(ContextHandle& handle, PyObject* context) {
  if (!context || context == Py_None) return kNoContext;
  if (PyLong_Check(context)) {
    const auto number = PyLong_AsUnsignedLongLong(context);
    if ((number != ~0ull || !PyErr_Occurred()) && number < kNoContext) return number;
    PyErr_Clear();
  }
  static std::atomic<std::uint64_t> next{kNoContext + 1};  // numbers are distinct across all queues
  const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  const py::scoped_critical_section section(handle.objects);
  if (handle.objects.size() >= handle.queue->size()) {
    // The queue has forgotten or lost its oldest entries, so their objects are not needed any more.
    const auto oldest = py::reinterpret_steal<py::object>(PyIter_Next(py::iter(handle.objects).ptr()));
    if (!oldest || PyDict_DelItem(handle.objects.ptr(), oldest.ptr()) != 0)
      PyErr_Clear();  // a reader has taken it meanwhile
  }
  handle.objects[py::int_(number)] = py::reinterpret_borrow<py::object>(context);
  return number;
}

[[gnu::hot]] bool post_all(ContextHandle& handle, PeerId peer, const Batch& batch, Operation& operation) {
  std::span<const Transfer> rest = batch.transfers;
  Context& context = *handle.context;
  bool started = false;
  Context::FullPath full;
  for (unsigned fruitless = 0; !rest.empty();) {
    std::size_t taken = 0;
    try {
      std::optional<std::size_t> tried;
      if (!batch.long_work && fruitless == 0) tried = context.try_post(peer, rest, full);
      if (tried) {
        taken = *tried;
      } else {
        const WithoutGil without_gil;
        taken = context.post(peer, rest, full);
        if (full.ended) {
          context.abandon(operation, static_cast<std::uint32_t>(rest.size()), Errc::peer_lost);
          return false;
        }
        if (taken == 0 && handle.no_wait && batch.first && !started)
          throw Error(Errc::again,
                      "the way to " + peer_text(peer) +
                          " is full; make progress, or wait for what is outstanding, and try again");
        if (taken == 0) context.make_room(fruitless);
      }
      if (taken < rest.size() && PyErr_CheckSignals() != 0) throw py::error_already_set();
    } catch (...) {
      if (batch.first && !started && taken == 0) operation.withdraw();
      WithoutGil::run([&] {
        context.abandon(operation, static_cast<std::uint32_t>(rest.size() - taken), Errc::canceled);
      });
      throw;
    }
    rest = rest.subspan(taken);
    started |= taken != 0;
    fruitless = taken ? 0 : fruitless + 1;
  }
  return true;
}

void post_operation(ContextHandle& handle, std::span<const Transfer> batch, OperationObject& operation,
                    std::span<LocalBuffer> buffers) {
  const auto keep = [&] {
    if (operation.phase.load() == OperationObject::kSettled) return;
    std::vector<LocalBuffer> kept;
    for (LocalBuffer& buffer : buffers) kept.push_back(std::move(buffer));
    launched(operation, std::move(kept));
  };
  try {
    post_all(handle, operation.peer, {batch, operation.nbytes >= kLongWork}, operation.core);
  } catch (...) {
    keep();  // some transfers may be under way
    throw;
  }
  keep();
}

[[gnu::hot]] OperationObject* prepare_operation(ContextHandle& handle, const OperationKind& kind,
                                                const Target& target, std::uint64_t nbytes,
                                                PyObject* user_context) {
  introduce(handle, target);
  OperationObject* operation = new_operation(kind.brings);
  if (!operation) throw py::error_already_set();
  operation->op = kind.op;
  operation->peer = target.peer;
  operation->remote = target.remote;
  operation->key = target.key;
  operation->nbytes = nbytes;
  operation->origin = handle.origin;
  if (user_context && user_context != Py_None) keep_context(*operation, user_context);
  return operation;
}

void bind_context(py::module_& m) {
  py::options texts;
  texts.disable_function_signatures();  // pybind11's own say nothing to inspect.signature
  m.def("start_overlap_watch", &OverlapWatch::start,
        "For tests: notes from now on when two threads move one context at the same time.");
  m.def("stop_overlap_watch", &OverlapWatch::stop, "How often that happened since it was started.");
  py::class_<ContextHandle> type(m, "Context", holds_objects<ContextHandle>(),
                                 "One transmit and receive side of an endpoint, with one lock.");
  type.def(py::init([](const std::shared_ptr<DomainCore>& domain, std::uint16_t index, std::uint32_t number,
                       const std::vector<std::pair<std::string, std::uint32_t>>& keys, bool counts,
                       const std::shared_ptr<AddressVector>& peers,
                       const std::shared_ptr<CompletionQueue>& queue, py::dict objects, unsigned rx_bits,
                       std::uint64_t max_group_id, bool directed, bool exempt, py::object kept) {
             DomainCore::EndpointTraits traits{.number = number,
                                               .counts = counts,
                                               .rx_bits = rx_bits,
                                               .max_group_id = max_group_id,
                                               .directed_receive = directed,
                                               .exempt = exempt};
             for (const auto& [secret, auth] : keys) traits.keys.push_back({secret, auth});
             auto handle = open_context(domain, index, traits, peers, queue);
             handle->objects = std::move(objects);
             handle->kept = std::move(kept);
             return handle;
           }),
           py::arg("domain"), py::kw_only(), py::arg("index"), py::arg("number"), py::arg("keys"),
           py::arg("counts"), py::arg("peers"), py::arg("queue"), py::arg("objects"), py::arg("rx_bits"),
           py::arg("max_group_id"), py::arg("directed"), py::arg("exempt"), py::arg("kept"))
      .def(
          "_bind_events",
          [](const ContextHandle& handle, std::shared_ptr<EventQueue> events) {
            handle.check_open();
            WithoutGil::run([&] { handle.context->bind(std::move(events)); });
          },
          py::arg("events").none(true),
          "From now on this queue is told of lost peers and links; None: none is.")
      .def(
          "parts",
          [](const ContextHandle& handle) {
            handle.check_open();
            py::list out;
            for (const Part& part : WithoutGil::run([&] { return handle.context->parts(); }))
              out.append(py::make_tuple(part.link, part.context, py::bytes(part.bytes)));
            return out;
          },
          "parts(self)\n--\n\nWhat each link contributes to the address: (link, context, bytes).")
      .def(
          "socket_names",
          [](const ContextHandle& handle) {
            handle.check_open();
            std::vector<std::string> names;
            WithoutGil::run([&] {
              handle.context->locked([&](Endpoint& endpoint) { names = endpoint.socket_names(); });
            });
            py::list out;
            for (const std::string& name : names) out.append(py::bytes(name));
            return out;
          },
          "socket_names(self)\n--\n\nThe socket addresses at which peers reach it; empty without tcp.")
      .def(
          "report",
          [](ContextHandle& handle, const py::object& peer) {
            handle.check_open();
            const PeerId id = peer_from(peer.ptr());
            const auto [reach, report] = WithoutGil::run(
                [&] { return std::pair(handle.context->reaches(id), handle.context->report(id)); });
            return py::make_tuple(report.link, report.how, reach.why);
          },
          py::arg("peer"),
          "report(self, peer)\n--\n\n(link, how, why): which link leads to the peer, how the bytes go, and "
          "why this one.")
      .def(
          "_reaches",
          [](ContextHandle& handle, const py::object& peer) {
            handle.check_open();
            const PeerId id = peer_from(peer.ptr());
            return WithoutGil::run([&] { return handle.context->reaches(id).ok; });
          },
          py::arg("peer"), "Whether a link leads to the peer, as far as can be told without asking it.")
      .def(
          "counts",
          [](ContextHandle& handle, const py::object& peer) {
            handle.check_open();
            const PeerId id = peer_from(peer.ptr());
            const PathCounts counts = WithoutGil::run([&] { return handle.context->counts(id); });
            py::dict out;
            out["posted"] = counts.posted;
            out["settled"] = counts.settled;
            out["bytes_out"] = counts.bytes_out;
            out["bytes_in"] = counts.bytes_in;
            out["errors"] = counts.errors;
            return out;
          },
          py::arg("peer"),
          "counts(self, peer)\n--\n\n"
          "What went to and from the peer: operations posted, settled and failed, bytes out and in.")
      .def(
          "flush",
          [](ContextHandle& handle, const py::object& peer, const py::object& timeout) {
            handle.check_open();
            const PeerId id = peer.is_none() ? kNoPeer : peer_from(peer.ptr());
            const Deadline deadline = deadline_from(timeout);
            if (id != kNoPeer &&
                !handle.context->peers().contains(handle.context->handles().target(id).index))
              throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(id)) +
                                             " is not in the address vector (never inserted, or removed)");
            auto goals = WithoutGil::run([&] { return handle.context->flush_goals(id); });
            if (!wait_interruptibly([&](Deadline until) { return handle.context->flushed(goals, until); },
                                    deadline))
              throw Error(Errc::timeout, "operations " +
                                             (id == kNoPeer ? std::string() : "to " + peer_text(id) + " ") +
                                             "are still outstanding when the time of flush() is over");
            handle.finished->drain();
          },
          py::arg("peer") = py::none(), py::arg("timeout") = py::none(),
          "flush(self, peer=None, timeout=None)\n--\n\n"
          "Waits until everything posted to `peer` (None: to all) before the call has settled.")
      .def(
          "_scope", [](const ContextHandle& handle, bool no_wait) { return handle.scope(no_wait); },
          py::arg("no_wait") = false,
          "Another handle of this context, that counts what it starts: for _flush_scope and _outstanding.")
      .def(
          "_flush_scope",
          [](ContextHandle& handle, const py::object& timeout, bool callbacks) {
            handle.check_open();
            if (!handle.flush_scope(deadline_from(timeout), callbacks))
              throw Error(Errc::timeout,
                          std::to_string(handle.tally->open()) +
                              " operations are still outstanding, or their callbacks, when the "
                              "time of flush() is over");
          },
          py::arg("timeout") = py::none(), py::arg("callbacks") = false)
      .def_property_readonly("_outstanding", [](const ContextHandle& handle) { return handle.tally->open(); })
      .def(
          "progress",
          [](ContextHandle& handle) {
            handle.check_open();
            bool moved;
            {
              const WithoutGil without_gil;
              moved = handle.context->progress();
            }
            handle.finished->drain();
            return moved;
          },
          "progress(self)\n--\n\nMoves what can be moved without waiting; whether anything moved.")
      .def_property_readonly(
          "_poll_fd", [](const ContextHandle& handle) { return handle.context->driver().poll_fd(); },
          "For event loops under manual progress.")
      .def(
          "_drive",
          [](ContextHandle& handle) {
            if (handle.shared->closed.load()) return;
            {
              const WithoutGil without_gil;
              do {
                handle.context->progress();
              } while (handle.context->driver().arm() == Driver::Rest::work_left);
            }
            handle.finished->drain();
          },
          "Moves what can be moved; on return the descriptor tells of more.")
      .def_property_readonly(
          "manual", [](const ContextHandle& handle) { return handle.manual; },
          "Whether it moves only in calls (`progress=\"manual\"`).")
      .def_property_readonly(
          "closed", [](const ContextHandle& handle) { return handle.shared->closed.load(); },
          "Whether its endpoint has been closed.")
      .def_static(
          "_close_all", &ContextHandle::close_all, py::arg("contexts"),
          "Ends contexts of one domain. All give their peers a while to take in their last messages, at "
          "the same time.");
  add_methods(type, rma_methods);
  add_methods(type, vector_methods);
  add_methods(type, atomic_methods);
  add_methods(type, message_methods);
}

}  // namespace fab::python
