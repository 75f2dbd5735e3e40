#include "fabric/context/path_question.h"

namespace fab {
namespace {

// The questions that this thread is asking, the innermost first.
struct Asking {
  const void* asker;
  PeerId peer;
  const Asking* outer;
};
thread_local const Asking* innermost = nullptr;

}  // namespace

std::vector<double> PathQuestion::ask(const void* asker) const {
  struct Entered {
    explicit Entered(const Asking& asking) { innermost = &asking; }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered() { innermost = innermost->outer; }
  };
  const Asking asking{asker, peer_, innermost};
  const Entered entered(asking);
  return question_();
}

bool PathQuestion::pending(const void* asker, PeerId peer) noexcept {
  for (const Asking* asking = innermost; asking; asking = asking->outer)
    if (asking->asker == asker && asking->peer == peer) return true;
  return false;
}

}  // namespace fab
