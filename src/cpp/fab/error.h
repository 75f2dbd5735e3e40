#pragma once

#include <stdexcept>
#include <string>

#include "fab/api.h"

FAB_BEGIN
// Why a call or an operation failed: what was asked, what was found, and what to do.
class FAB_API Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ~Error() override;
  // An errno where one fits (ECONNRESET: the peer is lost; EACCES, EFAULT, EKEYREJECTED: it refused;
  // EHOSTUNREACH; ETIMEDOUT; ECANCELED), else a code of libfabric's from 256.
  int code() const noexcept { return code_; }
  const char* name() const noexcept;  // as libfabric names it: "FI_ENOKEY"

 private:
  int code_;
};

FAB_END
