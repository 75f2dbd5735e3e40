#pragma once

// The kernel of a fuzzer that is linked with known_files.cpp, as far as the code under test asks it for files
// of this process by their number in /proc, over and over and for nothing new. What it said of a known file
// once, it says again without a system call: status, seals, bytes, rights. Mappings of it are made once;
// their first part may not be touched while the code under test does not have them. There is no other process
// but the first one. Every other file is the real kernel's.
namespace fab::test {

// The file stays open, as long as it is, and sealed as it is.
void know_file(int fd);

}  // namespace fab::test
