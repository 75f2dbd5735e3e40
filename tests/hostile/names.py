"""Addresses as anybody can write them (docs/wire.md, "Names")."""

from __future__ import annotations

import struct
import zlib

Part = tuple[bytes, int, bytes]
"""Link, context, and what only the link reads."""


def parts_of(address: bytes) -> list[Part]:
    body, parts = address[10:-4], []
    (count,) = struct.unpack_from("<H", body)
    at = 2
    for _ in range(count):
        fields = []
        for index in range(3):
            if index == 1:
                fields.append(struct.unpack_from("<H", body, at)[0])
                at += 2
            else:
                (size,) = struct.unpack_from("<I", body, at)
                fields.append(body[at + 4 : at + 4 + size])
                at += 4 + size
        parts.append(tuple(fields))
    return parts


def address_of(parts: list[Part]) -> bytes:
    body = struct.pack("<H", len(parts))
    for link, context, data in parts:
        body += struct.pack("<I", len(link)) + link + struct.pack("<H", context)
        body += struct.pack("<I", len(data)) + data
    return struct.pack("<IHI", 0x316E6670, 1, len(body)) + body + struct.pack("<I", zlib.crc32(body))
