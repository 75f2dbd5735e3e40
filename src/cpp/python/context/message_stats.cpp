#include "python/context/message_stats.h"

#include "python/context/context_object.h"

namespace fab::python {
namespace {

// The name of a form of sending, such as "tsend+vector+data".
std::string name_of_form(unsigned form) {
  std::string name = form & send_form::kTagged ? "t" : "";
  name += form & send_form::kInject ? "inject" : "send";
  if (form & send_form::kVector) name += "+vector";
  if (form & send_form::kRemoteData) name += "+data";
  return name;
}

}  // namespace

PyObject* message_stats(PyObject* self, PyObject*) {
  try {
    const ContextHandle& handle = context_handle(self);
    handle.check_open();
    ReceiveQueue::Sizes sizes;
    {
      const WithoutGil without_gil;
      sizes = handle.context->inbox().sizes();
    }
    py::dict out;
    out["posted"] = sizes.posted;
    out["unexpected"] = sizes.unexpected;
    out["most_posted"] = sizes.posted_lengths.longest;
    out["most_unexpected"] = sizes.unexpected_lengths.longest;
    out["mean_posted"] = sizes.posted_lengths.mean();
    out["mean_unexpected"] = sizes.unexpected_lengths.mean();
    out["met_posted"] = sizes.matched_posted;
    out["met_unexpected"] = sizes.matched_unexpected;
    return out.release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* link_stats(PyObject* self, PyObject*) {
  try {
    const ContextHandle& handle = context_handle(self);
    handle.check_open();
    LinkBook links;
    {
      const WithoutGil without_gil;
      links = handle.context->inbox().link_counters();
    }
    py::dict out;
    for (const auto& [name, counters] : links) {
      py::dict sends;
      for (unsigned form = 0; form < send_form::kForms; ++form)
        if (counters.sends[form] != 0) sends[py::str(name_of_form(form))] = counters.sends[form];
      py::dict link;
      link["sends"] = sends;
      link["receives"] = counters.receives;
      link["waiting"] = counters.waiting;
      link["unexpected"] = counters.unexpected.entries;
      link["longest_unexpected"] = counters.unexpected.longest;
      link["unexpected_lengths"] = counters.unexpected.sum;
      out[shown(name)] = link;
    }
    return out.release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

}  // namespace fab::python
