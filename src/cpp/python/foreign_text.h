#pragma once

// Comes before every other header of pybind11, because it says how these turn bytes into text.
#include <pybind11/cast.h>

#include <string>
#include <string_view>
#include <type_traits>

namespace fab::python {

// Text for people from bytes that others may have chosen. Bytes that are not UTF-8 are escaped, so they never
// make this fail, and so are control characters (base/bytes/printable.h). Every string of the core becomes a
// Python string here. Throws py::error_already_set when memory runs out.
pybind11::str shown(std::string_view foreign);

// Returns to Python what a function of the core returns as text.
template <class String>
struct ShownCaster : pybind11::detail::string_caster<String, std::is_same_v<String, std::string_view>> {
  static pybind11::handle cast(std::string_view text, pybind11::return_value_policy, pybind11::handle) {
    return shown(text).release();
  }
};

}  // namespace fab::python

namespace pybind11::detail {
template <>
struct type_caster<std::string> : fab::python::ShownCaster<std::string> {};
template <>
struct type_caster<std::string_view> : fab::python::ShownCaster<std::string_view> {};
}  // namespace pybind11::detail
