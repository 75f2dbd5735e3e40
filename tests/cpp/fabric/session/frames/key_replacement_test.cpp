#include "handshake_sides.h"

namespace fab::test {

TEST_CASE("while a key is replaced, the called side answers by the one that the caller has proven") {
  Side a({"former"}), b({"former"});
  b.keys[0].others = {"next"};
  CHECK(Exchange(a, b).run() == Errc::ok);
  a.keys[0].secret = "next";
  Exchange call(a, b);
  CHECK(call.run() == Errc::ok);
  CHECK(call.acceptor.secret() == "next");
  CHECK(call.acceptor.auth_index() == 0);
  CHECK(call.caller.secret() == "next");
  a.keys[0].secret = "guess";
  CHECK(Exchange(a, b).run() == Errc::key_rejected);
  a.keys[0].secret = "former";
  b.keys[0].secret = "next";
  b.keys[0].others.clear();
  CHECK(Exchange(a, b).run() == Errc::key_rejected);
}

TEST_CASE("a key that is replaced in the middle of a handshake") {
  Side a({"former"}), b({"former"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  a.keys[0] = {.secret = "next", .others = {"former"}};  // the caller goes on with what it has proven
  REQUIRE(call.acceptor.receive(proof).error == Errc::ok);
  b.keys[0] = {.secret = "next", .others = {"former"}};
  CHECK(call.caller.receive(call.acceptor.welcome(kAcceptorsStream)).error == Errc::ok);
}

}  // namespace fab::test
