#include "fab/error.h"

#include "fabric/types/error.h"

namespace fab::FAB_INTERFACE_NAME {

Error::~Error() = default;

const char* Error::name() const noexcept { return fab::name(static_cast<fab::Errc>(code_)); }

}  // namespace fab::FAB_INTERFACE_NAME
