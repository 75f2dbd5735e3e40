#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace model {

// The choices of one execution, of which explore() tries all. An execution is repeated from its beginning
// with the choices of the one before, up to the last at which there was another way.
//
// A schedule is how an execution is written down: only the choices that were not the usual one, each with the
// step at which it was made, such as "7>1 12<2". ">" chooses the next thread, and "<" an older store to read.
class Choices {
 public:
  enum class What : char { thread = '>', store = '<' };

  // Replays one execution instead. Throws std::invalid_argument if the text is no schedule.
  void follow(const std::string& schedule);
  // A choice among `ways`, of which 0 is the usual one.
  unsigned choose(std::uint64_t step, What what, unsigned ways);
  void begin() noexcept { at_ = 0; }
  // Goes to the next execution; false: there is none.
  bool next();
  // All begins anew.
  void clear() noexcept { path_.clear(); }
  // Of the choices that were made since begin().
  std::string schedule() const;

 private:
  struct Choice {
    std::uint64_t step;
    What what;
    unsigned taken, ways;
  };
  std::vector<Choice> path_;
  std::size_t at_ = 0;
  bool follows_ = false;
  std::map<std::pair<std::uint64_t, What>, unsigned> followed_;
};

}  // namespace model
