#pragma once

// The libcrypto of a fuzzer that is linked with signatures.cpp: the system's, or one whose signatures are not
// worth anything and cost nothing. They fit their key and their text only, so that a changed message is
// refused all the same.
namespace fab::test {

bool signatures_are_real() noexcept;
// Keys that were made before are of no use afterwards, until this is taken back.
void signatures_are_real(bool real) noexcept;

}  // namespace fab::test
