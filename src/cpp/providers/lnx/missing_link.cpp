#include "providers/lnx/missing_link.h"

#include <utility>

#include "fabric/types/error.h"

namespace fab::lnx {
namespace {

class MissingEndpoint final : public Endpoint {
 public:
  explicit MissingEndpoint(std::string why) : why_(std::move(why)) {}

  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {false, why_}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override {
    throw Error(Errc::unreachable, why_);
  }
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

 private:
  const std::string why_;
};

class MissingLink final : public Domain {
 public:
  MissingLink(Info info, std::string link) : info_(std::move(info)), link_(std::move(link)) {}

  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {{.link = link_}}; }
  PartCheck part_check() const override {
    return [](const PartView&) { return PartVerdict{}; };
  }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices&) override {
    return std::make_unique<MissingEndpoint>(info_.provider + " cannot be used here: " + info_.why);
  }

 private:
  const Info info_;
  const std::string link_;
};

}  // namespace

std::unique_ptr<Domain> make_missing_link(Info info, std::string link) {
  return std::make_unique<MissingLink>(std::move(info), std::move(link));
}

}  // namespace fab::lnx
