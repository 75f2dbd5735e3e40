#include <utility>

#include "data/gather.h"
#include "data/shuffle.h"
#include "python/context/context_object.h"

namespace fab::python {
namespace {

using Numbers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using SampleOffsets = py::array_t<std::uint64_t, py::array::c_style>;

// Sample numbers from an index array as NumPy has them: negative numbers count from the end.
std::vector<std::uint64_t> samples_from(const py::object& object, std::uint64_t size) {
  const auto array = py::array::ensure(object);
  if (!array) {
    PyErr_Clear();
    throw Error(Errc::invalid, "the indices are no array of integers");
  }
  const char kind = array.dtype().kind();
  if (array.ndim() != 1 || (kind != 'i' && kind != 'u' && array.size() != 0))
    throw Error(Errc::invalid, "the indices have dtype " + py::str(array.dtype()).cast<std::string>() +
                                   " and " + std::to_string(array.ndim()) +
                                   " dimensions; give integers in one dimension");
  if (kind == 'u' && array.itemsize() == 8 && array.size() != 0 &&
      py::array_t<std::uint64_t>(array).attr("max")().cast<std::uint64_t>() > std::uint64_t{INT64_MAX})
    throw Error(Errc::bounds, "an index is out of range: the store has " + std::to_string(size) + " samples");
  const Numbers numbers = Numbers::ensure(array);
  std::vector<std::uint64_t> samples(static_cast<std::size_t>(numbers.size()));
  if (samples.size() > (std::size_t{1} << 31))
    throw Error(Errc::invalid, "one gather takes at most 2**31 indices");
  const std::int64_t* data = numbers.data();
  const auto limit = static_cast<std::int64_t>(size);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t number = data[i];  // read once, because another thread may be writing there
    if (number < -limit || number >= limit)
      throw Error(Errc::bounds, "index " + std::to_string(number) + " is out of range: the store has " +
                                    std::to_string(size) + " samples");
    samples[i] = static_cast<std::uint64_t>(number < 0 ? number + limit : number);
  }
  return samples;
}

// A gather that has begun.
struct Begun {
  py::object operation;
  py::list offsets;  // for each ragged field: the byte offsets of the samples
  std::shared_ptr<GatherJob> job;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(operation.ptr());
    Py_VISIT(offsets.ptr());
    return 0;
  }
  void clear() { const py::object last = std::exchange(operation, py::none()); }
};

class Gatherer {
 public:
  Gatherer(py::object context, const std::vector<std::uint64_t>& starts, const py::list& fields,
           std::uint32_t holders)
      : context_(std::move(context)) {
    std::vector<GatherPlan::Field> plan;
    for (const py::handle field : fields) {
      const auto [row, sources] = field.cast<std::pair<std::uint64_t, py::list>>();
      plan.push_back({row, {}});
      for (const py::handle source : sources) plan.back().sources.push_back(source_from(source));
    }
    plan_ = std::make_shared<const GatherPlan>(starts, std::move(plan), holders);
  }
  ~Gatherer() { close(); }
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(context_.ptr());
    Py_VISIT(kept_.ptr());
    return 0;
  }
  void clear() noexcept {}  // the collector clears the context and the list themselves

  // The bytes of these samples of a ragged field.
  std::uint64_t measure(std::size_t field, const py::object& indices) const {
    const auto samples = samples_from(indices, plan_->size());
    if (field >= plan_->fields().size() || plan_->fields()[field].row != 0)
      throw Error(Errc::invalid, "field " + std::to_string(field) + " is not ragged");
    std::vector<std::uint64_t> offsets(samples.size() + 1);
    plan_->measure(field, samples, offsets.data());
    return offsets.back();
  }

  // `outputs` has one entry for each field: an array or, for a ragged field, a function that is called with
  // the bytes of the samples and returns the array for their values.
  static Begun start(const py::object& self, const py::object& indices, const py::list& outputs,
                     bool in_place) {
    auto& gatherer = self.cast<Gatherer&>();
    ContextHandle& handle = context_handle(gatherer.context_.ptr());
    handle.check_open();
    auto samples = samples_from(indices, gatherer.plan_->size());
    const auto& fields = gatherer.plan_->fields();
    if (outputs.size() != fields.size())
      throw Error(Errc::invalid, std::to_string(outputs.size()) + " outputs for " +
                                     std::to_string(fields.size()) + " fields");
    Begun begun;
    std::vector<LocalBuffer> buffers;
    std::vector<GatherJob::Output> targets;
    std::uint64_t nbytes = 0;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      py::object values = outputs[i];
      std::uint64_t needed = samples.size() * fields[i].row;
      const std::uint64_t* table = nullptr;
      if (fields[i].row == 0) {
        SampleOffsets offsets(static_cast<py::ssize_t>(samples.size() + 1));
        gatherer.plan_->measure(i, samples, offsets.mutable_data());
        table = offsets.data();
        needed = table[samples.size()];
        values = values(needed);
        buffers.push_back(LocalBuffer::of(offsets.ptr(), false));
        begun.offsets.append(offsets);
      }
      buffers.push_back(LocalBuffer::of(values.ptr(), true));
      const LocalBuffer& target = buffers.back();
      if (!target.pieces.empty() || target.nbytes < needed)
        throw Error(Errc::too_small, "field " + std::to_string(i) + ": the samples have " +
                                         std::to_string(needed) + " bytes, the output has room for " +
                                         std::to_string(target.nbytes));
      targets.push_back({target.data, table});
      nbytes += needed;
    }
    OperationObject* operation = prepare_operation(handle, {OpCode::read}, Target{}, nbytes, nullptr);
    begun.operation = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(operation));
    begin(*operation, 1, kNoContext, nullptr);
    begun.job = std::make_shared<GatherJob>(gatherer.plan_, handle.context, operation->core,
                                            GatherJob::Wanted{std::move(samples), std::move(targets)},
                                            [worker = gatherer.worker_](std::shared_ptr<GatherJob> job) {
                                              return worker->submit(std::move(job));
                                            });
    buffers.emplace_back().memory = begun.job;
    buffers.back().holder = Py_NewRef(self.ptr());
    launched(*operation, std::move(buffers));
    if (in_place || !gatherer.worker_->submit(begun.job)) WithoutGil::run([&] { begun.job->post(); });
    return begun;
  }

  std::vector<std::uint64_t> bytes_read() const {
    std::vector<std::uint64_t> out(plan_->holders());
    for (std::uint32_t holder = 0; holder < plan_->holders(); ++holder)
      out[holder] = plan_->bytes_read(holder);
    return out;
  }
  std::vector<std::uint32_t> lost() const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t holder = 0; holder < plan_->holders(); ++holder)
      if (plan_->lost(holder)) out.push_back(holder);
    return out;
  }
  std::uint64_t replica_samples() const { return plan_->replica_samples(); }
  void close() {
    WithoutGil::run([&] { worker_->stop(); });
  }

 private:
  GatherPlan::Source source_from(const py::handle& source) {
    const auto [local, nbytes, offsets, places] =
        source.cast<std::tuple<py::object, std::uint64_t, py::object, py::list>>();
    GatherPlan::Source out;
    out.nbytes = nbytes;
    if (!offsets.is_none()) {
      const auto table = offsets.cast<SampleOffsets>();
      out.offsets = table.data();
      kept_.append(table);
    }
    if (!local.is_none()) {
      memory_.push_back(LocalBuffer::of(local.ptr(), false));
      if (memory_.back().nbytes < nbytes) throw Error(Errc::too_small, "a shard is smaller than its samples");
      out.local = memory_.back().data;
      return out;
    }
    for (const py::handle place : places) {
      const auto [peer, region, holder] = place.cast<std::tuple<py::object, py::object, std::uint32_t>>();
      const Target target = Target::of(peer_from(peer.ptr()), region.ptr());
      out.places.push_back({target.peer, target.key, target.remote, holder});
      kept_.append(region);
    }
    return out;
  }

  py::object context_;
  py::list kept_;
  std::vector<LocalBuffer> memory_;
  std::shared_ptr<const GatherPlan> plan_;
  std::shared_ptr<GatherWorker> worker_ = std::make_shared<GatherWorker>();
};

py::array_t<std::int64_t> shuffled(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch,
                                   std::uint64_t start, std::uint64_t count) {
  if (size > (std::uint64_t{1} << 62) || start > size || count > size - start)
    throw Error(Errc::bounds, "positions " + std::to_string(start) + " to " + std::to_string(start + count) +
                                  " of a shuffle of " + std::to_string(size));
  py::array_t<std::int64_t> out(static_cast<py::ssize_t>(count));
  std::int64_t* numbers = out.mutable_data();
  if (count == 0) return out;
  const Shuffle shuffle(size, seed, epoch);
  for (std::uint64_t i = 0; i < count; ++i) numbers[i] = static_cast<std::int64_t>(shuffle(start + i));
  return out;
}

}  // namespace

void bind_gather(py::module_& m) {
  py::class_<Begun>(m, "Gather", holds_objects<Begun>(), "A gather that has begun.")
      .def_readonly("operation", &Begun::operation)
      .def_readonly("offsets", &Begun::offsets)
      .def(
          "wait_posted",
          [](const Begun& begun, const py::object& timeout) {
            return wait_interruptibly([&](Deadline until) { return begun.job->wait_posted(until); },
                                      deadline_from(timeout));
          },
          py::arg("timeout"), "Sleeps until the thread that reads ahead has posted it; False: out of time.")
      .def(
          "trouble",
          [](const Begun& begun) -> py::object {
            GatherJob::Chunk chunk{};
            if (!begun.job->troubled(chunk)) return py::none();
            return py::make_tuple(chunk.field, chunk.shard, chunk.holder);
          },
          "(field, shard, holder) of what failed first, or of something that is still open; None without. A "
          "holder\n"
          "that is not below `holders` is this process.");
  py::class_<Gatherer>(m, "Gatherer", holds_objects<Gatherer>(),
                       "Reads samples by number from shards that several processes hold.")
      .def(py::init<py::object, const std::vector<std::uint64_t>&, const py::list&, std::uint32_t>(),
           py::arg("context"), py::arg("starts"), py::arg("fields"), py::arg("holders"),
           "fields: (bytes of a sample or 0, sources); a source, one a shard: (local array or None, nbytes, "
           "byte offsets or None,\n[(peer, RemoteRegion, holder), …]).")
      .def("measure", &Gatherer::measure, py::arg("field"), py::arg("indices"))
      .def("start", &Gatherer::start, py::arg("indices"), py::arg("outputs"), py::arg("in_place"))
      .def("bytes_read", &Gatherer::bytes_read)
      .def("lost", &Gatherer::lost)
      .def_property_readonly("replica_samples", &Gatherer::replica_samples)
      .def("close", &Gatherer::close);
  m.def("shuffled", &shuffled, py::arg("size"), py::arg("seed"), py::arg("epoch"), py::arg("start"),
        py::arg("count"), "Numbers at positions [start, start + count) of a permutation of range(size).");
}

}  // namespace fab::python
