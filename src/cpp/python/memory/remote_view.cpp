#include "python/memory/remote_view.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/bytes/wire.h"
#include "fabric/memory/raw_key.h"
#include "fabric/types/versions.h"
#include "python/memory/buffers.h"

namespace fab::python {
namespace {

constexpr std::uint8_t kVersionDigit = '0' + versions::kRemoteView;
static_assert(versions::kRemoteView < 10);

PyTypeObject* remote_type = nullptr;

[[noreturn]] void out_of_range(std::int64_t index, int axis, std::int64_t size) {
  throw Error(Errc::bounds, "index " + std::to_string(index) + " is out of bounds for axis " +
                                std::to_string(axis) + " with size " + std::to_string(size));
}

py::tuple to_tuple(const std::array<std::int64_t, RemoteView::kMaxDims>& values, int count) {
  py::tuple out(count);
  for (int i = 0; i < count; ++i)
    out[static_cast<std::size_t>(i)] = py::int_(values[static_cast<std::size_t>(i)]);
  return out;
}

// The bytes of an element of this type. Throws for types whose elements are no plain values in memory.
std::int64_t size_in_memory(const py::object& type) {
  const auto size = static_cast<std::int64_t>(py::reinterpret_borrow<py::dtype>(type).itemsize());
  if (size == 0 || type.attr("hasobject").cast<bool>() || !type.attr("subdtype").is_none())
    throw Error(Errc::invalid, "a remote array has elements of plain values, not of dtype " +
                                   py::str(type).cast<std::string>());
  return size;
}

py::object byte_type() { return py::dtype::of<std::uint8_t>(); }

}  // namespace

const RemoteView* remote_view(PyObject* object) {
  if (Py_TYPE(object) != remote_type) return nullptr;
  return reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder().value_ptr<RemoteView>();
}

void RemoteView::settle() {
  nbytes = static_cast<std::uint64_t>(itemsize);
  contiguous = true;
  std::int64_t expected = itemsize;
  for (int axis = ndim; axis-- > 0;) {
    const auto i = static_cast<std::size_t>(axis);
    nbytes *= static_cast<std::uint64_t>(shape[i]);
    if (shape[i] != 1 && strides[i] != expected) contiguous = false;
    expected *= shape[i];
  }
  if (nbytes == 0) contiguous = true;
}

RemoteView RemoteView::of(RemoteRegion region, py::object dtype, const std::vector<std::int64_t>& shape) {
  RemoteView view;
  view.region = std::make_shared<const RemoteRegion>(std::move(region));
  view.itemsize = py::reinterpret_borrow<py::dtype>(dtype).itemsize();
  view.dtype = std::move(dtype);
  if (shape.size() > kMaxDims)
    throw Error(Errc::invalid, "arrays of more than 16 dimensions cannot be described to peers");
  view.ndim = static_cast<int>(shape.size());
  std::int64_t stride = view.itemsize;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] < 0) throw Error(Errc::invalid, "a dimension of an array is not negative");
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
    if (__builtin_mul_overflow(stride, shape[axis], &stride))
      throw Error(Errc::invalid, "an array of this shape has no size");
  }
  view.settle();
  return view;
}

RemoteView RemoteView::at(py::handle index) const {
  RemoteView out = *this;
  out.ndim = 0;
  int axis = 0;
  const auto keep_axis = [&](std::int64_t size, std::int64_t stride) {
    const auto to = static_cast<std::size_t>(out.ndim++);
    out.shape[to] = size;
    out.strides[to] = stride;
  };
  PyObject* const alone = index.ptr();
  const std::span<PyObject* const> items =
      PyTuple_Check(alone) ? std::span<PyObject* const>(reinterpret_cast<PyTupleObject*>(alone)->ob_item,
                                                        static_cast<std::size_t>(PyTuple_GET_SIZE(alone)))
                           : std::span(&alone, 1);
  const auto given = static_cast<int>(items.size());
  const bool has_ellipsis = std::ranges::find(items, Py_Ellipsis) != items.end();
  if (given - has_ellipsis > ndim)
    throw Error(Errc::bounds, "too many indices: the remote array has " + std::to_string(ndim) +
                                  " dimensions, and " + std::to_string(given - has_ellipsis) + " were given");
  bool expanded = false;
  for (const py::handle item : items) {
    const auto i = static_cast<std::size_t>(axis);
    if (item.is(py::ellipsis())) {
      if (expanded) throw Error(Errc::bounds, "an index holds at most one Ellipsis");
      expanded = true;
      for (int rest = ndim - (given - 1); rest > 0; --rest, ++axis)
        keep_axis(shape[static_cast<std::size_t>(axis)], strides[static_cast<std::size_t>(axis)]);
      continue;
    }
    if (PySlice_Check(item.ptr())) {
      Py_ssize_t start, stop, step;
      if (PySlice_Unpack(item.ptr(), &start, &stop, &step) != 0) throw py::error_already_set();
      const Py_ssize_t count = PySlice_AdjustIndices(shape[i], &start, &stop, step);
      if (count > 0) out.offset += static_cast<std::uint64_t>(start * strides[i]);
      keep_axis(count, strides[i] * step);
    } else if (PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr())) {
      const Py_ssize_t at = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
      if (at == -1 && PyErr_Occurred()) throw py::error_already_set();
      if (at < -shape[i] || at >= shape[i]) out_of_range(at, axis, shape[i]);
      out.offset += static_cast<std::uint64_t>((at < 0 ? at + shape[i] : at) * strides[i]);
    } else {
      throw Error(Errc::bounds, "a remote array takes integers, slices and Ellipsis as indices, not " +
                                    std::string(py::repr(item)) + "; for rows by number use take()");
    }
    ++axis;
  }
  for (; axis < ndim; ++axis)
    keep_axis(shape[static_cast<std::size_t>(axis)], strides[static_cast<std::size_t>(axis)]);
  out.settle();
  return out;
}

bool RemoteView::takes(py::handle index) {
  const auto takes_part = [](PyObject* part) {
    return PySlice_Check(part) || part == Py_Ellipsis || (PyLong_Check(part) && !PyBool_Check(part));
  };
  if (!PyTuple_Check(index.ptr())) return takes_part(index.ptr());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index.ptr()); ++i)
    if (!takes_part(PyTuple_GET_ITEM(index.ptr(), i))) return false;
  return true;
}

bool RemoteView::is_like(PyObject* array) const {
  if (!is_exact_array(array)) return false;
  const auto* fields = py::detail::array_proxy(array);
  if (fields->nd != ndim || fields->descr != dtype.ptr() ||
      (fields->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0)
    return false;
  return std::equal(shape.begin(), shape.begin() + ndim, fields->dimensions);
}

RemoteView RemoteView::bytes(std::int64_t start, std::int64_t stop) const {
  if (!contiguous) throw Error(Errc::invalid, "bytes() needs a contiguous remote array; this one is strided");
  if (start < 0 || stop < start || std::cmp_greater(stop, nbytes))
    throw Error(Errc::bounds, "bytes [" + std::to_string(start) + ", " + std::to_string(stop) +
                                  ") are not inside the " + std::to_string(nbytes) +
                                  " bytes of the remote array");
  RemoteView out;
  out.region = region;
  out.offset = offset + static_cast<std::uint64_t>(start);
  out.dtype = byte_type();
  out.shape[0] = stop - start;
  out.strides[0] = 1;
  out.settle();
  return out;
}

RemoteView RemoteView::as(py::object type) const {
  RemoteView out = *this;
  out.itemsize = size_in_memory(type);
  out.dtype = std::move(type);
  if (out.itemsize == itemsize) return out;
  if (ndim == 0) throw Error(Errc::invalid, "view() of a remote scalar takes dtypes of its size alone");
  const auto last = static_cast<std::size_t>(ndim) - 1;
  if (shape[last] != 1 && nbytes != 0 && strides[last] != itemsize)
    throw Error(Errc::invalid,
                "view() with another itemsize needs a contiguous last axis; this one is strided");
  const std::int64_t row = shape[last] * itemsize, whole = out.itemsize < itemsize ? itemsize : row;
  if (whole % out.itemsize != 0)
    throw Error(Errc::invalid, "view() makes no elements of " + std::to_string(out.itemsize) +
                                   " bytes from " + (whole == row ? "rows" : "elements") + " of " +
                                   std::to_string(whole));
  out.shape[last] = row / out.itemsize;
  out.strides[last] = out.itemsize;
  out.settle();
  return out;
}

RemoteView RemoteView::as(py::object type, const std::vector<std::int64_t>& form) const {
  if (!contiguous)
    throw Error(Errc::invalid, "view() with a shape needs a contiguous remote array; this one is strided");
  size_in_memory(type);
  RemoteView out = RemoteView::of(*region, std::move(type), form);
  if (out.nbytes > nbytes)
    throw Error(Errc::bounds, "an array of " + std::to_string(out.nbytes) + " bytes does not fit the " +
                                  std::to_string(nbytes) + " bytes of the view");
  out.region = region;
  out.offset = offset;
  return out;
}

std::vector<std::uint64_t> RemoteView::runs(std::uint64_t& run_length) const {
  // The innermost axes without gaps make one run.
  int outer = ndim;
  std::int64_t dense = itemsize;
  while (outer > 0 && (shape[static_cast<std::size_t>(outer) - 1] == 1 ||
                       strides[static_cast<std::size_t>(outer) - 1] == dense))
    dense *= shape[static_cast<std::size_t>(--outer)];
  run_length = static_cast<std::uint64_t>(dense);
  std::vector<std::uint64_t> offsets;
  if (nbytes == 0) return offsets;
  offsets.reserve(nbytes / run_length);
  std::array<std::int64_t, kMaxDims> at{};
  for (;;) {
    std::int64_t where = 0;
    for (int axis = 0; axis < outer; ++axis)
      where += at[static_cast<std::size_t>(axis)] * strides[static_cast<std::size_t>(axis)];
    offsets.push_back(offset + static_cast<std::uint64_t>(where));
    int axis = outer;
    while (axis-- > 0) {
      const auto i = static_cast<std::size_t>(axis);
      if (++at[i] < shape[i]) break;
      at[i] = 0;
    }
    if (axis < 0) return offsets;
  }
}

// A plain dtype travels as its string, a structured one as the text of its description.
static std::string described(const py::object& dtype) {
  if (dtype.attr("names").is_none()) return dtype.attr("str").cast<std::string>();
  try {
    return py::repr(dtype.attr("descr")).cast<std::string>();
  } catch (const py::error_already_set&) {
    throw Error(Errc::invalid,
                "the dtype " + py::str(dtype).cast<std::string>() +
                    " cannot be sent: NumPy describes only dtypes whose fields stand in the order of "
                    "their offsets and do not overlap; describe the memory by such a dtype");
  }
}

std::string RemoteView::encode() const {
  WireWriter out;
  out.put_bytes(region->encode()).put(offset);
  out.put_bytes(described(dtype));
  out.put(static_cast<std::uint8_t>(ndim));
  for (int axis = 0; axis < ndim; ++axis)
    out.put(shape[static_cast<std::size_t>(axis)]).put(strides[static_cast<std::size_t>(axis)]);
  const std::string body = out.take();
  WireWriter sealed;
  sealed.raw("pfv").put(kVersionDigit).put(crc32(body)).raw(body);
  return sealed.take();
}

RemoteView RemoteView::decode(std::string_view bytes) {
  const auto refuse = [](const std::string& why) {
    return Error(Errc::invalid, "these bytes are no remote region: " + why);
  };
  WireReader in(bytes);
  if (in.raw(3) != "pfv") throw refuse("they do not start like one");
  if (const auto digit = in.get<std::uint8_t>(); in.ok() && digit != kVersionDigit)
    throw refuse("they are of version " + std::to_string(int{digit} - '0') + ", this library reads version " +
                 std::to_string(versions::kRemoteView));
  if (const auto sum = in.get<std::uint32_t>(); !in.ok() || sum != crc32(bytes.substr(8)))
    throw refuse("the checksum is wrong");
  RemoteView view;
  view.region = std::make_shared<const RemoteRegion>(RemoteRegion::decode(in.get_bytes()));
  view.offset = in.get<std::uint64_t>();
  const std::string description(in.get_bytes());
  view.ndim = in.get<std::uint8_t>();
  if (!in.ok() || view.ndim > kMaxDims) throw refuse("their length does not fit");
  std::uint64_t low = view.offset, high = view.offset, elements = 1;
  for (int axis = 0; axis < view.ndim; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    view.shape[i] = in.get<std::int64_t>();
    view.strides[i] = in.get<std::int64_t>();
    if (view.shape[i] < 0 || view.shape[i] > (std::int64_t{1} << 48))
      throw refuse("a dimension is impossible");
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(view.shape[i]), &elements))
      throw refuse("the shape is impossible");
    std::int64_t span;
    if (view.shape[i] == 0) continue;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &span) ||
        (span < 0 ? __builtin_sub_overflow(low, static_cast<std::uint64_t>(-span), &low)
                  : __builtin_add_overflow(high, static_cast<std::uint64_t>(span), &high)))
      throw refuse("the strides are impossible");
  }
  if (!in.at_end()) throw refuse("their length does not fit");
  try {
    const bool structured = description.starts_with('[');
    const py::object descr = structured ? py::module_::import("ast").attr("literal_eval")(description)
                                        : py::object(py::str(description));
    // NumPy writes the gaps between fields as fields without a name; its reader of .npy files makes gaps of
    // them again.
    view.dtype = py::module_::import("numpy.lib.format").attr("descr_to_dtype")(descr);
  } catch (const py::error_already_set&) {
    throw refuse("the dtype \"" + description.substr(0, 100) + "\" is unknown");
  }
  if (view.dtype.attr("hasobject").cast<bool>()) throw refuse("the dtype holds Python objects");
  // The elements of an array are no arrays themselves: NumPy puts the inner shape into the outer one.
  if (!view.dtype.attr("subdtype").is_none())
    throw refuse("the dtype \"" + description.substr(0, 100) + "\" is that of an array within an array");
  view.itemsize = py::reinterpret_borrow<py::dtype>(view.dtype).itemsize();
  std::uint64_t all = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(view.itemsize), &all))
    throw refuse("the shape is impossible");
  if (elements != 0) {
    const std::uint64_t length = view.region->length;
    if (high > length || static_cast<std::uint64_t>(view.itemsize) > length - high)
      throw refuse("the array does not fit the region");
  }
  view.settle();
  return view;
}

std::string RemoteView::describe() const {
  std::string text = "shape=(";
  for (int axis = 0; axis < ndim; ++axis)
    text += (axis ? ", " : "") + std::to_string(shape[static_cast<std::size_t>(axis)]);
  return text + (ndim == 1 ? ",)" : ")") + ", dtype=" + py::str(dtype).cast<std::string>() +
         ", offset=" + std::to_string(offset);
}

void bind_remote(py::module_& m) {
  py::options texts;
  texts.disable_function_signatures();  // pybind11's own say nothing to inspect.signature
  py::class_<RemoteView> type(
      m, "RemoteRegion",
      "What a peer needs to reach a region, and nothing more: key, base and length, and how the registered "
      "array "
      "is laid out. Immutable, picklable; slices like a NumPy array without moving a byte.");
  remote_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  type.def_property_readonly(
          "key", [](const RemoteView& view) { return view.region->key; }, "The 64-bit key.")
      .def_property_readonly(
          "raw_key",
          [](const RemoteView& view) {
            for (const Part& part : view.region->parts)
              if (part.link == "raw") return py::bytes(part.bytes);
            return py::bytes(encode_raw_key(view.region->key, sizeof view.region->key));
          },
          "The key as bytes, for Domain.map_raw().")
      .def_property_readonly(
          "base", [](const RemoteView& view) { return view.region->base; },
          "What peers add to an offset: 0, or the target's address under MRMode.VIRT_ADDR.")
      .def_property_readonly("address", &RemoteView::remote,
                             "Where the view starts, as (address, key) takes it.")
      .def_readonly("offset", &RemoteView::offset, "Bytes from the start of the region to the first element.")
      .def_readonly("nbytes", &RemoteView::nbytes, "Bytes of all elements.")
      .def_readonly("dtype", &RemoteView::dtype, "The dtype of the elements.")
      .def_readonly("itemsize", &RemoteView::itemsize, "Bytes of an element.")
      .def_readonly("ndim", &RemoteView::ndim, "How many dimensions it has.")
      .def_readonly("contiguous", &RemoteView::contiguous, "Whether the elements lie one after the other.")
      .def_property_readonly(
          "access_bits", [](const RemoteView& view) { return view.region->access & access::kAll; },
          "The rights of the region, as the number of an Access.")
      .def_property_readonly(
          "region_nbytes", [](const RemoteView& view) { return view.region->length; },
          "Bytes of the whole region.")
      .def_property_readonly(
          "shape", [](const RemoteView& view) { return to_tuple(view.shape, view.ndim); },
          "Elements in each dimension.")
      .def_property_readonly(
          "strides", [](const RemoteView& view) { return to_tuple(view.strides, view.ndim); },
          "Bytes from an element to the next in each dimension.")
      .def_property_readonly(
          "size",
          [](const RemoteView& view) {
            return view.itemsize ? view.nbytes / static_cast<std::uint64_t>(view.itemsize) : 0;
          },
          "How many elements there are.")
      .def("__len__",
           [](const RemoteView& view) {
             if (view.ndim == 0) throw py::type_error("len() of a remote scalar");
             return view.shape[0];
           })
      .def("__getitem__", &RemoteView::at, py::arg("index"))
      .def("bytes", &RemoteView::bytes, py::arg("start"), py::arg("stop"),
           "bytes(self, start, stop)\n--\n\nThe bytes [start, stop) of a contiguous view, as uint8.")
      .def(
          "view",
          [](const RemoteView& view, const py::object& dtype,
             const std::optional<std::vector<std::int64_t>>& shape) {
            const auto kind = py::dtype::from_args(dtype);
            return shape ? view.as(kind, *shape) : view.as(kind);
          },
          py::arg("dtype"), py::arg("shape") = py::none(),
          "view(self, dtype, shape=None)\n--\n\n"
          "The same memory as elements of another dtype, which moves no byte.\n\n"
          "Without a shape as with ndarray.view: only the last axis gets longer or shorter, and has to be "
          "contiguous unless "
          "the\nelements stay as large. shape: the view, which is contiguous, from its start as an array of "
          "this "
          "shape.\nInvalidArgumentError for dtypes that do not fit, or of objects; BoundsError for a shape "
          "that is too "
          "large.")
      .def(
          "runs",
          [](const RemoteView& view) {
            std::uint64_t length = 0;
            const auto offsets = view.runs(length);
            return py::make_tuple(
                py::array_t<std::uint64_t>(static_cast<py::ssize_t>(offsets.size()), offsets.data()), length);
          },
          "runs(self)\n--\n\n(offsets, length): the contiguous runs of bytes, from the start of the region, "
          "in C order.")
      .def(
          "to_bytes", [](const RemoteView& view) { return py::bytes(view.encode()); },
          "to_bytes(self)\n--\n\nThe bytes that from_bytes() makes the same view of, in another process.")
      .def_static(
          "from_bytes", [](const py::bytes& bytes) { return RemoteView::decode(std::string_view(bytes)); },
          py::arg("bytes"),
          "from_bytes(bytes)\n--\n\n"
          "The view that to_bytes() described. Raises InvalidArgumentError for bytes that to_bytes() did not "
          "make.")
      .def(
          "__eq__",
          [](const RemoteView& a, const py::object& other) {
            const RemoteView* b = remote_view(other.ptr());
            return b && a.encode() == b->encode();
          },
          py::arg("other"))
      .def("__hash__", [](const RemoteView& view) { return py::hash(py::bytes(view.encode())); })
      .def("__repr__",
           [](const RemoteView& view) {
             return "RemoteRegion(" + view.describe() + ", nbytes=" + std::to_string(view.nbytes) + ")";
           })
      .def(py::pickle([](const RemoteView& view) { return py::bytes(view.encode()); },
                      [](const py::bytes& bytes) { return RemoteView::decode(std::string_view(bytes)); }));
}

}  // namespace fab::python
