#include <algorithm>

#include "fabric/address_vector/address_vector.h"
#include "fabric/address_vector/named_peer_memory.h"
#include "fabric/domain/domain_core.h"
#include "fabric/types/name.h"
#include "python/bind.h"

namespace fab::python {
namespace {

// Views of a list of bytes objects, which the caller keeps alive. Any other object gives an empty view, which
// no address vector takes for an address.
std::vector<std::string_view> views_of(const py::list& items) {
  std::vector<std::string_view> views;
  views.reserve(items.size());
  for (const py::handle item : items)
    views.push_back(PyBytes_Check(item.ptr())
                        ? std::string_view(PyBytes_AS_STRING(item.ptr()),
                                           static_cast<std::size_t>(PyBytes_GET_SIZE(item.ptr())))
                        : std::string_view());
  return views;
}

struct Failed {
  std::size_t index;
  Errc code;
  std::string text;
};

// Inserts many addresses. Returns their handles, and a dict from the index of each that failed to its code
// and text.
py::tuple insert_many(AddressVector& vector, const py::list& addresses, const py::object& user_ids,
                      const py::object& auths) {
  const auto views = views_of(addresses);
  const auto numbers = [&](const py::object& list) {
    auto values = list.is_none() ? std::vector<std::uint64_t>() : list.cast<std::vector<std::uint64_t>>();
    if (!list.is_none() && values.size() != views.size())
      throw Error(Errc::invalid, "as many inputs as addresses are needed");
    return values;
  };
  const auto ids = numbers(user_ids), keys = numbers(auths);
  std::vector<PeerId> handles(views.size(), kNoPeer);
  std::vector<Failed> failed;
  {
    const WithoutGil without_gil;
    vector.insert(
        views,
        [&](std::size_t i) {
          AddressVector::Extra extra;
          if (!ids.empty()) extra.user_id = ids[i];
          if (!keys.empty()) extra.auth = static_cast<std::uint32_t>(keys[i]);
          return extra;
        },
        [&](std::size_t i, PeerId handle, const Error* error) {
          handles[i] = handle;
          if (error) failed.push_back({i, error->code(), error->what()});
        });
  }
  py::list out(handles.size());
  for (std::size_t i = 0; i < handles.size(); ++i) out[i] = py::int_(handles[i]);
  py::dict errors;
  for (const Failed& fail : failed)
    errors[py::int_(fail.index)] = py::make_tuple(static_cast<int>(fail.code), fail.text);
  return py::make_tuple(out, errors);
}

// Makes a function that takes the options one by one and calls `call(first..., options)`.
template <class... First, class Call>
auto with_options(Call call) {
  return [call](First... first, std::uint32_t format, unsigned rx_bits, std::uint64_t max_group,
                std::uint32_t ep_per_node, bool symmetric, bool user_ids, bool reject_duplicates,
                std::uint32_t type) {
    return call(std::move(first)..., AddressVectorOptions{.format = static_cast<AddressFormat>(format),
                                                          .rx_bits = rx_bits,
                                                          .max_group = max_group,
                                                          .ep_per_node = ep_per_node,
                                                          .symmetric = symmetric,
                                                          .user_ids = user_ids,
                                                          .reject_duplicates = reject_duplicates,
                                                          .type = type});
  };
}

std::shared_ptr<AddressVector> open_named_vector(const VectorName& name,
                                                 const AddressVectorOptions& options) {
  const WithoutGil without_gil;
  return std::make_shared<AddressVector>(options, open_named_peer_memory(name, options));
}

}  // namespace

void bind_address_vector(py::module_& m) {
  py::class_<AddressVector, std::shared_ptr<AddressVector>>(m, "AddressVectorCore")
      .def(py::init(with_options(
               [](const AddressVectorOptions& options) { return std::make_shared<AddressVector>(options); })),
           py::kw_only(), py::arg("format"), py::arg("rx_bits"), py::arg("max_group"), py::arg("ep_per_node"),
           py::arg("symmetric"), py::arg("user_ids"), py::arg("reject_duplicates"), py::arg("type"))
      .def(
          "judge_parts",
          [](AddressVector& av, const DomainCore& domain) {
            av.judge_parts(domain.domain().part_check(), domain.domain().info().links);
          },
          py::arg("domain"))
      .def(
          "insert",
          [](AddressVector& av, const py::bytes& address) { return av.insert(std::string_view(address)); },
          py::arg("address"))
      .def("insert_many", &insert_many, py::arg("addresses"), py::arg("user_ids"), py::arg("auths"),
           "([handle], {index: (code, text)}): inserts what can be inserted.")
      .def("remove", &AddressVector::remove, py::arg("peer"), py::call_guard<WithoutGil>())
      .def(
          "lookup", [](const AddressVector& av, PeerId peer) { return py::bytes(av.lookup(peer)); },
          py::arg("peer"))
      .def("contains", &AddressVector::contains, py::arg("peer"))
      .def("set_user_id", &AddressVector::set_user_id, py::arg("peer"), py::arg("user_id"))
      .def("reported", &AddressVector::reported, py::arg("index"))
      .def("auth", &AddressVector::auth, py::arg("peer"))
      .def("set_key_user_id", &AddressVector::set_key_user_id, py::arg("auth"), py::arg("user_id"))
      .def("map_address", &AddressVector::map_address)
      .def("end", &AddressVector::end)
      .def("size", &AddressVector::size);
  m.def("open_named_vector",
        with_options<std::string, std::string, bool, std::uint64_t>(
            [](std::string domain, std::string name, bool read_only, std::uint64_t map_address,
               const AddressVectorOptions& options) {
              return open_named_vector({std::move(domain), std::move(name), read_only, map_address}, options);
            }),
        py::arg("domain"), py::arg("name"), py::kw_only(), py::arg("read_only"), py::arg("map_address"),
        py::arg("format"), py::arg("rx_bits"), py::arg("max_group"), py::arg("ep_per_node"),
        py::arg("symmetric"), py::arg("user_ids"), py::arg("reject_duplicates"), py::arg("type"));
  m.def(
      "named_vector_path",
      [](std::string domain, std::string name) {
        return named_vector_path({.domain = std::move(domain), .name = std::move(name)});
      },
      py::arg("domain"), py::arg("name"));
  m.def(
      "print_address", [](const py::bytes& address) { return print_address(std::string_view(address)); },
      py::arg("address"), "As text; an empty string for what has no known format.");
  m.def(
      "address_links",
      [](const py::bytes& address) {
        std::vector<std::string> links;
        for (const Part& part : Name::decode(std::string_view(address)).parts)
          if (std::ranges::find(links, part.link) == links.end()) links.push_back(part.link);
        return links;
      },
      py::arg("address"), "The links that an address has parts of: \"tcp.0\".");
  m.def(
      "restrict_address",
      [](const py::bytes& address, const std::vector<std::string>& links) {
        Name name = Name::decode(std::string_view(address));
        std::erase_if(name.parts,
                      [&](const Part& part) { return std::ranges::find(links, part.link) == links.end(); });
        return py::bytes(name.encode());
      },
      py::arg("address"), py::arg("links"), "The same with the parts of these links alone.");
  m.def(
      "parse_address", [](const std::string& text) { return py::bytes(parse_address(text)); },
      py::arg("text"));
}

}  // namespace fab::python
