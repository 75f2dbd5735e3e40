#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fabric/address_vector/socket_name.h"
#include "fabric/context/context.h"
#include "fabric/types/name.h"

namespace fab::fi {

// Names of endpoints as libfabric's programs carry them: fi_getname(3), fi_av(3). They are passed in arrays,
// so all names of domains over the same links have one length: 56 or 64 bytes (providers/compact_name.h), or
// else a name of the core, behind which zeros stand. Where names are socket addresses they are passed as they
// are.
std::string to_wire(const Name& name);
// The name of an endpoint whose first context this is. By socket addresses it is where the context listens:
// on `source` if it says a host, otherwise on whatever interface comes first.
std::string name_of(Context& context, AddressFormat format, const std::optional<SocketAddress>& source);
// Between what programs carry and the addresses of the core's address vectors of this format. from_wire()
// throws Error(invalid) for what is no name.
std::string to_wire(std::string_view address, AddressFormat format);
std::string from_wire(std::string_view bytes, AddressFormat format);
// The length of names at the beginning of `bytes`, of which more may follow. Throws Error(invalid).
std::size_t wire_length(const void* bytes, AddressFormat format);

}  // namespace fab::fi
