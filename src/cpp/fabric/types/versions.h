#pragma once

#include <cstdint>

// The version of each format whose bytes leave a process: docs/versions.md says what each covers and what may
// mix. The number goes up with any change after which an older reader would misread the bytes;
// tests/cpp/providers/versions_test.cpp fails when a layout changes and its number does not.
namespace fab::versions {

inline constexpr std::uint16_t kWire = 3;  // the handshake, and the frames that follow it
inline constexpr std::uint16_t kName = 1;  // the envelope of addresses and their list of parts
inline constexpr std::uint8_t kCompactName =
    4;  // addresses in 56 or 64 bytes, which hold parts of the two kinds below
inline constexpr std::uint8_t kEndpointPart = 2;  // the part of a network link in an address
// The same where the addresses take exchanges of queue pairs: the top bit says so. Who does not know the bit
// takes it for another version, and skips the part.
inline constexpr std::uint8_t kExchangePart = 0x80 | kEndpointPart;
inline constexpr std::uint16_t kRemoteRegion = 1;  // RemoteRegion::encode()
// The array that a remote region is seen as, around the remote region: the digit behind "pfv".
inline constexpr std::uint8_t kRemoteView = 1;
// What processes of one node map of each other: the segment with its region table, the channel with its eager
// ring, and the part of shared memory in an address. They are one layout, because who maps one of them relies
// on all.
inline constexpr std::uint16_t kSharedLayout = 11;
inline constexpr std::uint32_t kPeerFile = 3;         // the file of a named address vector
inline constexpr std::uint8_t kVerbsCall = 1;         // the private data of a connection over verbs
inline constexpr std::uint8_t kVerbsExchange = 1;     // what two sides tell each other of their queue pairs
inline constexpr std::uint8_t kVerbsDescription = 1;  // what a device needs to reach a region by itself
// The permutations of data/shuffle.h. States of samplers name it, so that none goes on in another order.
inline constexpr std::uint32_t kShuffle = 1;

}  // namespace fab::versions
