"""Frames on a socket: a JSON header and some bytes, both length-checked.

They are used where no fabric exists yet: to exchange names at the start of a group, and to ask a server for its arrays. Nothing
received is trusted: a frame of another format or size raises ConnectionError, and no pickle is ever read.
"""

from __future__ import annotations

import json
import reprlib
import struct
from typing import Any

from pyfab import versions

PREFIX = struct.Struct("<4sII")
"""Magic, bytes of the header, bytes of the body."""

MAX_HEADER = 1 << 20
"""Bytes."""

_MAGIC = b"pyf%d" % versions.MEETING

Header = dict[str, Any]

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 100


def shown(value: object) -> str:
    """What came from outside, quoted and short enough for an error's text, however long or deeply nested it is."""
    return _short.repr(value)


def encoded(header: Header, body: bytes = b"") -> bytes:
    """A frame, not sealed. ValueError if the header is too long."""
    head = json.dumps(header).encode()
    if len(head) > MAX_HEADER:
        raise ValueError(f"a frame header of {len(head)} bytes; at most {MAX_HEADER}")
    return PREFIX.pack(_MAGIC, len(head), len(body)) + head + body


def sizes(prefix: bytes | bytearray, max_header: int, max_body: int) -> tuple[int, int]:
    """Bytes of header and body, of a frame that begins like this. ConnectionError if it is of another format or too long."""
    magic, head_size, body_size = PREFIX.unpack(prefix)
    if magic != _MAGIC:
        version = magic[3:].decode("ascii", errors="replace")
        if magic[:3] == _MAGIC[:3] and version.isdigit():
            raise ConnectionError(
                f"what answers there speaks version {version} of pyfab's protocol of meetings, this side version"
                f" {versions.MEETING}; install the same on both sides"
            )
        raise ConnectionError("what answers there does not speak pyfab's protocol")
    if head_size > max_header or body_size > max_body:
        raise ConnectionError(
            f"a frame of {head_size} + {body_size} bytes; at most {max_header} + {max_body}"
        )
    return head_size, body_size


def decoded(head: bytes | bytearray) -> Header:
    """What a header says. ConnectionError if it is none."""
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"a frame whose header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise ConnectionError("a frame whose header is no JSON object")
    return header
