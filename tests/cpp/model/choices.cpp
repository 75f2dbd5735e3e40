#include "model/choices.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace model {

void Choices::follow(const std::string& schedule) {
  follows_ = true;
  std::istringstream in(schedule);
  std::uint64_t step;
  char what;
  unsigned taken;
  while (in >> step >> what >> taken) {
    if (what != '>' && what != '<') break;
    followed_[{step, static_cast<What>(what)}] = taken;
  }
  if (!in.eof()) throw std::invalid_argument("no schedule: " + schedule);
}

unsigned Choices::choose(std::uint64_t step, What what, unsigned ways) {
  if (ways < 2) return 0;
  if (follows_) {
    const auto found = followed_.find({step, what});
    const unsigned taken = found == followed_.end() ? 0 : std::min(found->second, ways - 1);
    path_.push_back({step, what, taken, ways});
    ++at_;
    return taken;
  }
  if (at_ == path_.size()) path_.push_back({step, what, 0, ways});
  const Choice& choice = path_[at_++];
  // The scenario does not do the same again, for example because its setup() leaves something as it was.
  if (choice.step != step || choice.what != what || choice.ways != ways) std::abort();
  return choice.taken;
}

bool Choices::next() {
  path_.resize(at_);
  while (!path_.empty() && path_.back().taken + 1 == path_.back().ways) path_.pop_back();
  if (path_.empty() || follows_) return false;
  ++path_.back().taken;
  return true;
}

std::string Choices::schedule() const {
  std::ostringstream out;
  const char* between = "";
  for (std::size_t i = 0; i < at_; ++i) {
    if (path_[i].taken == 0) continue;
    out << between << path_[i].step << static_cast<char>(path_[i].what) << path_[i].taken;
    between = " ";
  }
  return out.str();
}

}  // namespace model
