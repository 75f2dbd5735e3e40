#include "fabric/types/name.h"
#include "python/bind.h"
#include "python/operations/completion_object.h"
#include "python/operations/operation_object.h"

namespace fab::python {
namespace {

// Waits for a queue or counter of `domain` until `done()` or the time is over. Returns whether it is done.
template <class Waited>
bool wait_for(DomainCore& domain, Waited& waited, const std::function<bool()>& done,
              const py::object& timeout) {
  waited.add_waiter();
  struct Leave {
    Waited& waited;
    ~Leave() { waited.remove_waiter(); }
  } const leave{waited};
  return wait_interruptibly([&](Deadline until) { return domain.wait(done, until); }, deadline_from(timeout));
}

}  // namespace

void bind_queues(py::module_& m) {
  py::class_<CompletionQueue, std::shared_ptr<CompletionQueue>>(m, "CompletionQueueCore")
      .def_property_readonly("size", &CompletionQueue::size)
      .def("fileno", &CompletionQueue::event_fd, "A descriptor that is readable while there are entries.")
      .def(
          "read",
          [](CompletionQueue& queue, std::size_t max, py::dict& objects) {
            std::vector<Completion> entries(std::min<std::size_t>(max, queue.size()));
            entries.resize(queue.read(entries));
            py::list out;
            for (const Completion& entry : entries) {
              py::object context;
              if (entry.context == kNoContext || (entry.flags & completion_flag::kRemoteWrite) != 0) {
                context = py::none();
              } else if (entry.context > kNoContext) {
                // The operation's own entry takes the context object away. Other entries leave it, because
                // the operation may still have transfers under way.
                const py::int_ number(entry.context);
                const bool more = (entry.flags & (completion_flag::kMore | completion_flag::kLate)) != 0;
                context =
                    more ? objects.attr("get")(number, py::none()) : objects.attr("pop")(number, py::none());
              }
              out.append(py::reinterpret_steal<py::object>(make_completion(entry, context.ptr())));
            }
            return out;
          },
          py::arg("max"), py::arg("objects"))
      .def(
          "wait",
          [](CompletionQueue& queue, const std::shared_ptr<DomainCore>& domain, const py::object& timeout) {
            return wait_for(*domain, queue.wakeup(), [&] { return !queue.empty(); }, timeout);
          },
          py::arg("domain"), py::arg("timeout"));

  py::class_<Counter, std::shared_ptr<Counter>>(m, "CounterCore", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("value",
                             [](Counter& counter) {
                               const std::uint64_t value = counter.value();
                               if (counter.noticed()) WithoutGil::run([&] { counter.take_notices(); });
                               return value;
                             })
      .def_property_readonly("errors", &Counter::errors)
      .def("add", &Counter::add, py::arg("amount"))
      .def("set", &Counter::set, py::arg("value"))
      .def(
          "wait",
          [](Counter& counter, const std::shared_ptr<DomainCore>& domain, std::uint64_t threshold,
             const py::object& timeout) {
            const auto errors = counter.errors();
            return wait_for(
                *domain, counter, [&] { return counter.value() >= threshold || counter.errors() != errors; },
                timeout);
          },
          py::arg("domain"), py::arg("threshold"), py::arg("timeout"));

  py::class_<EventQueue, std::shared_ptr<EventQueue>>(m, "EventQueueCore")
      .def_property_readonly("size", &EventQueue::size)
      .def(
          "push_inserted",
          [](EventQueue& queue, int error, std::uint64_t call, std::uint64_t data, std::string text) {
            queue.push({.type = EventType::inserted,
                        .error = static_cast<Errc>(error),
                        .context = call,
                        .data = data,
                        .text = std::move(text)});
          },
          py::arg("error"), py::arg("call"), py::arg("data"), py::arg("text"))
      .def("read",
           [](EventQueue& queue) -> py::object {
             const auto event = queue.read();
             if (!event) return py::none();
             return py::make_tuple(static_cast<int>(event->type), static_cast<int>(event->error), event->peer,
                                   event->context, event->data, event->text, event->link());
           })
      .def(
          "wait",
          [](EventQueue& queue, const std::shared_ptr<DomainCore>& domain, const py::object& timeout) {
            return wait_for(*domain, queue.wakeup(), [&] { return !queue.empty(); }, timeout);
          },
          py::arg("domain"), py::arg("timeout"));

  m.def(
      "encode_name",
      [](const std::vector<std::tuple<std::string, std::uint16_t, py::bytes>>& parts) {
        Name name;
        for (const auto& [link, context, bytes] : parts)
          name.parts.push_back({link, context, std::string(bytes)});
        return py::bytes(name.encode());
      },
      py::arg("parts"));
  m.def(
      "decode_name",
      [](const py::bytes& bytes) {
        py::list out;
        for (const Part& part : Name::decode(std::string_view(bytes)).parts)
          out.append(py::make_tuple(part.link, part.context, py::bytes(part.bytes)));
        return out;
      },
      py::arg("address"), "[(link, context, bytes)]; raises InvalidArgumentError for what is no address.");
}

}  // namespace fab::python
