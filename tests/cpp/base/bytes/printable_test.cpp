#include "base/bytes/printable.h"

#include <doctest/doctest.h>

#include <string>

using namespace fab;

TEST_CASE("what a reader would obey is escaped, and all else is shown") {
  CHECK(printable("") == "");
  CHECK(printable("a link: tcp.0 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "a link: tcp.0 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\x1b[2J\n\x7f") == "\\x1b[2J\\x0a\\x7f");
  CHECK(printable("\xc2\x85") == "\\xc2\\x85");  // the next line, of one code
  CHECK(printable("\xc2\xa0") == "\xc2\xa0");    // a space
  CHECK(printable("a\xe2\x80\xae"
                  "b") ==
        "a\\xe2\\x80\\xae"
        "b");  // from right to left
  CHECK(printable("\xe2\x81\xa6") == "\\xe2\\x81\\xa6");
  CHECK(printable("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");  // the end of a line
  CHECK(printable("\xe2\x80\x94") == "\xe2\x80\x94");     // a dash
  CHECK(printable("\xd8\x9c") == "\\xd8\\x9c");
}

TEST_CASE("what is not UTF-8 stays as it is") {
  for (const char* text : {"\x80", "\xff", "\x85", "a\xc2", "\xe2", "\xe2\x80", "\xe2\x81"})
    CHECK(printable(text) == text);
}
