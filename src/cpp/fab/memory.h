#pragma once

#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

#include "fab/api.h"

FAB_BEGIN
// Whether it lies in one piece and is copied byte by byte.
template <class Range>
concept Plain = std::ranges::contiguous_range<Range&> && std::ranges::sized_range<Range&> &&
                std::is_trivially_copyable_v<std::ranges::range_value_t<Range&>>;

// Some bytes of the program, and what keeps them, if anything does: a range that is named is borrowed, and
// the caller keeps it as long as it is used; a range that is moved in, or held by a shared_ptr, is kept.
// Copies are of the same bytes. A literal has its zero at the end.
class FAB_API Memory {
 public:
  Memory() = default;
  Memory(void* data, std::size_t size, std::shared_ptr<const void> owner = nullptr)
      : data_(static_cast<std::byte*>(data)), size_(size), owner_(std::move(owner)) {}
  // Borrowed: a vector, an array, whatever has a name.
  template <Plain Range>
    requires(!std::is_same_v<std::remove_cv_t<Range>, Memory>)
  Memory(Range& range) : Memory(of(range, nullptr)) {}
  // Borrowed: a view, such as a span, which may be a temporary itself.
  template <Plain View>
    requires(!std::is_lvalue_reference_v<View> && std::ranges::borrowed_range<View>)
  Memory(View&& view) : Memory(of(view, nullptr)) {}
  // Kept: what is moved in.
  template <Plain Range>
    requires(!std::is_reference_v<Range> && !std::is_const_v<Range> && !std::ranges::borrowed_range<Range> &&
             !std::is_same_v<Range, Memory>)
  Memory(Range&& range) : Memory(std::make_shared<Range>(std::forward<Range>(range))) {}
  // Kept: what others hold as well.
  template <Plain Range>
  Memory(const std::shared_ptr<Range>& range) : Memory(range ? of(*range, range) : Memory()) {}
  // It cannot be moved in, and goes at the end of the expression.
  template <Plain Range>
    requires(!std::ranges::borrowed_range<const Range>)
  Memory(const Range&&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }   // bytes
  bool writable() const noexcept { return writable_; }  // false: of a const range, so only for puts and sends
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }
  // The elements, as many as fit.
  template <class Element>
  std::span<Element> as() const noexcept {
    return {reinterpret_cast<Element*>(data_), size_ / sizeof(Element)};
  }
  Memory part(std::size_t offset, std::size_t size) const;  // throws std::out_of_range

 private:
  friend Memory allocate(std::size_t size);
  friend class Domain;
  template <class Range>
  static Memory of(Range& range, std::shared_ptr<const void> owner) {
    using Element = std::ranges::range_value_t<Range>;
    Memory memory(const_cast<Element*>(std::ranges::data(range)), std::ranges::size(range) * sizeof(Element),
                  std::move(owner));
    memory.writable_ = !std::is_const_v<std::remove_pointer_t<decltype(std::ranges::data(range))>>;
    return memory;
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<const void> owner_;
  bool writable_ = true;
  int file_ = -1;  // that peers on the node map, from allocate()
  std::size_t file_offset_ = 0;
};

// Zeroed memory that peers on the node reach by plain loads and stores, once it is registered: for small
// puts and gets by far the fastest. Throws std::bad_alloc or std::system_error.
FAB_API Memory allocate(std::size_t size);

FAB_END
