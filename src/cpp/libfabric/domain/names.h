#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fabric/address_vector/socket_name.h"
#include "fabric/context/context.h"
#include "fabric/types/name.h"

namespace fab::fi {

// Names of endpoints as libfabric's programs carry them: fi_getname(3), fi_av(3). They are passed in arrays,
// so all names of domains over the same links have one length: 56 bytes (providers/compact_name.h), or else a
// name of the core, behind which zeros stand.
std::string to_wire(const Name& name);
// The name of an endpoint whose first context this is. By socket addresses it is where the context listens:
// on `source` if it says a host, otherwise on whatever interface comes first.
std::string name_of(Context& context, AddressFormat format, const std::optional<SocketAddress>& source);
// The address that the core's address vector takes. Throws Error(invalid) for what is no name.
std::string from_wire(std::string_view bytes);
// The length of names at the beginning of `bytes`, of which more may follow. Throws Error(invalid).
std::size_t wire_length(const void* bytes);

}  // namespace fab::fi
