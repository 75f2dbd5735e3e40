#pragma once

namespace fab {

template <class T, class Tag>
class LinkedList;

// The place of an object in a list: base class of T for a LinkedList<T, Tag>. An object that is destroyed
// leaves its list.
template <class Tag>
class Linked {
 public:
  Linked() noexcept = default;
  ~Linked() { unlink(); }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;

 private:
  template <class, class>
  friend class LinkedList;

  void unlink() noexcept {
    before_->after_ = after_;
    after_->before_ = before_;
    before_ = after_ = this;
  }
  Linked *before_ = this, *after_ = this;  // neighbours in a ring that LinkedList::end_ closes
};

// A first-in, first-out list of objects that are owned elsewhere, each at most once. It takes no memory, so
// nothing in it can fail.
template <class T, class Tag>
class LinkedList {
 public:
  // Stands on an object; objects that it has passed may leave the list.
  class Iterator {
   public:
    explicit Iterator(const Linked<Tag>* at) noexcept : at_(at) {}
    T& operator*() const noexcept { return static_cast<T&>(const_cast<Linked<Tag>&>(*at_)); }
    Iterator& operator++() noexcept {
      at_ = at_->after_;
      return *this;
    }
    bool operator==(const Iterator&) const noexcept = default;

   private:
    const Linked<Tag>* at_;
  };

  ~LinkedList() {
    while (!empty()) pop_front();
  }
  bool empty() const noexcept { return end_.after_ == &end_; }
  Iterator begin() const noexcept { return Iterator(end_.after_); }
  Iterator end() const noexcept { return Iterator(&end_); }
  // False, without effect, if the object is in this list already or in another one with the same Tag.
  bool push_back(T& item) noexcept {
    Linked<Tag>& link = item;
    if (link.after_ != &link) return false;
    link.before_ = end_.before_;
    link.after_ = &end_;
    link.before_->after_ = end_.before_ = &link;
    return true;
  }
  T& pop_front() noexcept {
    Linked<Tag>& first = *end_.after_;
    first.unlink();
    return static_cast<T&>(first);
  }
  static void erase(T& item) noexcept { static_cast<Linked<Tag>&>(item).unlink(); }
  // Moves all objects of `other` to the end of this list.
  void take(LinkedList& other) noexcept {
    while (!other.empty()) push_back(other.pop_front());
  }

 private:
  Linked<Tag> end_;
};

}  // namespace fab
