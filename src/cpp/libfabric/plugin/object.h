#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <cstdint>

#include "libfabric/plugin/uses.h"

// What every object of libfabric's has: a fid, by which programs close it, bind others to it and ask it.
namespace fab::fi {

// The object of ours whose first part a program knows as `handle`.
template <class Object, class Handle>
Object& object_of(Handle* handle) noexcept {
  return static_cast<Object&>(*handle);
}
// `Handle` is what the type is called in libfabric; its first member is the fid.
template <class Object, class Handle>
Object& object_of_fid(fid* known) noexcept {
  return static_cast<Object&>(*reinterpret_cast<Handle*>(known));
}

// The calls of kinds of objects to which nothing is bound, which control nothing, or which open nothing.
inline int bind_nothing(fid*, fid*, std::uint64_t) noexcept { return -FI_ENOSYS; }
inline int control_nothing(fid*, int, void*) noexcept { return -FI_ENOSYS; }
inline int open_nothing(fid*, const char*, std::uint64_t, void**, void*) noexcept { return -FI_ENOSYS; }

// fi_close(3) of what others may use: not before they are closed.
template <class Object, class Handle>
int close_unused(fid* known) noexcept {
  auto& object = object_of_fid<Object, Handle>(known);
  if (in_use(object.users())) return -FI_EBUSY;
  delete &object;
  return 0;
}

// The calls of a kind of objects.
constexpr fi_ops fid_ops(int (*close)(fid*), int (*bind)(fid*, fid*, std::uint64_t) = bind_nothing,
                         int (*control)(fid*, int, void*) = control_nothing) noexcept {
  return {.size = sizeof(fi_ops),
          .close = close,
          .bind = bind,
          .control = control,
          .ops_open = open_nothing,
          .tostr = nullptr,
          .ops_set = nullptr};
}

}  // namespace fab::fi
