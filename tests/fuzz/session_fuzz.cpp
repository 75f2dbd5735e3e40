#include <memory>
#include <optional>

#include "hostile_peer.h"
#include "providers/lnx/flows/flow_table.h"

// A session whose peer is hostile: as a target it is sent requests, as an initiator it is given answers to
// requests that it has made, in any order, cut anywhere. The input is a list of acts of the peer and of this
// side. One act sends raw bytes, for the frame header's own sake.

using namespace fab;
using namespace fab::test;

namespace {

// One session and what it works on.
class Story {
 public:
  explicit Story(Input& input) : input_(input), posts_(input), rails_(input.byte() % 2 != 0) {
    session_ = std::make_unique<Session>(Session::Services{
        .segment = owner().segment,
        .completions = completions_,
        .receives = receives_,
        .sender = std::make_shared<Sender>(owner().peers, std::vector<Part>{{"test.0", 0, "peer"}}),
        .context_slot = 0,
        .counts = counts_,
        .wake_domain = owner().wake,
        .handover = rails_ ? Handover::when_answered : Handover::at_once,
        .extensions = rails_ ? &*flows_ : nullptr,
        .on_cut = [this] { cut_ = true; }});
  }

  void run() {
    Errc error = Errc::ok;
    for (int acts = 0; acts < 200 && !input_.empty() && error == Errc::ok && !cut_ && !session_->broken();
         ++acts) {
      switch (input_.byte() % 8) {
        case 0:
          posts_.post([this](Transfer& transfer) { return session_->post({&transfer, 1}); });
          break;
        case 1:
          posts_.receive(receives_);
          break;
        case 2:
          speak();
          session_->end_turn();
          break;
        case 3:
          error = hear(std::string(input_.take(input_.byte())));
          break;
        default:
          error = hear(frame(input_));
          break;
      }
    }
    session_->fail(Errc::peer_lost);
    session_.reset();
    flows_.reset();  // until now, what a flow has announced could come over another rail
    receives_.drop_all();
    posts_.check();
  }

 private:
  Errc hear(const std::string& bytes) {
    return hears(*session_, bytes, [this] { return cut_; });
  }

  void speak() {
    iovec out[16];
    for (int rounds = 0; rounds < 64; ++rounds) {
      const std::size_t count = session_->output(out, 16);
      std::size_t bytes = 0;
      unsigned sum = 0;  // reads what would be sent, so that the sanitizer sees it
      for (std::size_t i = 0; i < count; ++i) {
        bytes += out[i].iov_len;
        for (std::size_t k = 0; k < out[i].iov_len; k += 61)
          sum += static_cast<const unsigned char*>(out[i].iov_base)[k];
      }
      read_ = sum;
      if (bytes == 0) return;
      session_->sent(bytes);
    }
  }

  Input& input_;
  Posts posts_;
  const bool rails_;
  bool cut_ = false;
  volatile unsigned read_ = 0;
  CompletionQueue completions_{64, CompletionQueue::WhenFull::forget_oldest};
  PathCounts counts_;
  ReceiveQueue receives_;
  EventOutlet events_;
  std::optional<lnx::FlowTable> flows_{std::in_place, receives_, events_, 10, [] {}};
  std::unique_ptr<Session> session_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  owner().begin();
  Input input(data, size);
  Story(input).run();
  owner().check();
  return 0;
}
