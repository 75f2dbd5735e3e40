"""Coverage-guided fuzzing of the parsers of foreign bytes that are written in Python, with atheris.

    python tests/fuzz/python_fuzz.py                                               the names of all parsers
    python tests/fuzz/python_fuzz.py frames [options of libFuzzer] [corpus ...]

`scripts/fuzz` runs them all. What a parser may raise on bytes that nobody vouches for is stated with it; the text of
each error is printable. Anything else ends the run as a finding.
"""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

import atheris

with atheris.instrument_imports(include=["pyfab"]):
    import numpy as np
    from pyfab import Access, Domain, _core
    from pyfab.core.deadline import Deadline
    from pyfab.core.errors import FabricError
    from pyfab.core.region import RemoteRegion
    from pyfab.data import GlobalShuffle
    from pyfab.group import admission, objects
    from pyfab.group.parts import _entries
    from pyfab.meeting.channel import Channel
    from pyfab.meeting.frames import decoded, encoded
    from pyfab.meeting.handshake import ServerHandshake
    from pyfab.meeting.rendezvous_tcp import _Meeting, _unpack
    from pyfab.meeting.tokens import Token
    from pyfab.tools.folder import Folder
    from pyfab.tools.lending import MOST_AT_ONCE, Lending, Room
    from pyfab.tools.serve import _Files
    from pyfab.transport.handles import RemoteHandle
    from pyfab.transport.names import names_in

_NO_LIMIT = Deadline(None)


class _Bytes:
    """A connected socket whose other side has sent these bytes and ended the connection."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def recv(self, most: int) -> bytes:
        part, self._left = self._left[:most], self._left[most:]
        return part

    def settimeout(self, seconds: float | None) -> None:
        assert seconds is None


def frames(data: bytes) -> None:
    """A frame as a connected side reads it, as it came and with a prefix that fits, and a client's proof."""
    kind, rest = data[:1], data[1:]
    if kind < b"\x40":
        Channel(_Bytes(rest)).receive(_NO_LIMIT, 1 << 16)  # type: ignore[arg-type]
    elif kind < b"\x80":
        Channel(_Bytes(rest), b"k" * 32).receive(_NO_LIMIT, 1 << 16)  # type: ignore[arg-type]
    else:
        prefix = b"pyf2" + len(rest).to_bytes(4, "little") + bytes(4)
        if kind < b"\xc0":
            Channel(_Bytes(prefix + rest)).receive(_NO_LIMIT)  # type: ignore[arg-type]
        else:
            waiting, proof = prefix + rest, ServerHandshake(_TOKEN, "a meeting")
            while not proof.take(waiting[: proof.lacks]):
                waiting = waiting[proof.lacks :] if proof.lacks < len(waiting) else b""


_TOKEN = Token("secret", "")


def cards(data: bytes) -> None:
    """What two ranks have told at a meeting: the group's key and versions, their cards, and the members of a group."""
    first, _, second = data.partition(b"\n")
    told = [admission._parsed(rank, value) for rank, value in enumerate((first, second))]
    if data[:1] == b"{" and data[1:2] == b" ":
        admission._key_of(told)
    parsed = admission.cards_of([first, second])
    if "cards" in parsed[0]:
        parsed = [*admission.members_of(parsed[0])[0], parsed[1]]
    admission.places_of(parsed)


def answers(data: bytes) -> None:
    """What rank 0 of a meeting answers, and what a rank asks."""
    header, _, body = data.partition(b"\n")
    told = admission._parsed(0, header)
    meeting, rank = _Meeting(2), told.get("rank")
    if meeting.enter(rank, told.get("size"), Channel(_Bytes(b""))) is None:  # type: ignore[arg-type]
        meeting.bring(0, rank, body)
    _unpack(told, body, 2, _NO_LIMIT, "here")


def plain_objects(data: bytes) -> None:
    """A plain object. What is read can be written, and is then read as the same bytes."""
    value = objects.decode_plain(data)
    written = objects.encode(value)
    if written[:1] == b"o":
        assert objects.encode(objects.decode(written)) == written, (
            "an object that was read is another one when written"
        )


def patched(data: bytes, whole: bytes) -> bytes:
    """`whole` with changes: place (2 bytes), how many bytes go (1) and come (1), and those. The checksums of a region fit then.

    Coverage says nothing of what the core reads, so bytes are changed that it takes.
    """
    made = bytearray(whole)
    while len(data) >= 4:
        place, gone, come = int.from_bytes(data[:2], "little") % (len(made) + 1), data[2] % 16, data[3] % 16
        made[place : place + gone] = data[4 : 4 + come]
        data = data[4 + come :]
    if made[:3] == b"pfv":
        inner = 12 + int.from_bytes(made[8:12], "little")
        if 26 <= inner <= len(made):
            made[inner - 4 : inner] = _sum(made[22 : inner - 4])
        made[4:8] = _sum(made[8:])
    return bytes(made)


def _sum(data: bytes | bytearray) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def regions(data: bytes) -> None:
    """A remote region, and the directory of a dynamic window."""
    if data[:1] == b"\xff":
        slots = np.zeros((2, 4096), np.uint8)
        used = np.frombuffer(data[1:8193], np.uint8)
        slots.reshape(-1)[: len(used)] = used
        _entries(slots)
        return
    whole = patched(data[1:], _REGIONS[data[0] % len(_REGIONS)] if data else b"")
    region = RemoteRegion.from_bytes(whole)
    again = RemoteRegion.from_bytes(region.to_bytes())
    assert (again.shape, again.dtype, again.key) == (region.shape, region.dtype, region.key), "it reads back"
    repr(region)
    if region.nbytes and region.ndim:
        region[-1:]


def names(data: bytes) -> None:
    """Addresses, names of transports and handles of registered memory."""
    kind, rest = data[:1], data[1:]
    if kind < b"\x55":
        names_in(rest)
    elif kind < b"\xaa":
        repr(RemoteHandle(rest))
    else:
        address = patched(rest, _ADDRESS)
        _core.restrict_address(address, _core.address_links(address))


with (
    Domain("shm+tcp:lo") as _domain,
    _domain.endpoint() as _endpoint,
    _domain.register(np.zeros((3, 4), np.float32), Access.REMOTE) as _plain,
    _domain.register(np.zeros(3, [("a", "<i4"), ("b", "<f8", (2,))]), Access.REMOTE) as _structured,
):
    _ADDRESS = _endpoint.address
    _REGIONS = [remote.to_bytes() for remote in (_plain.remote, _plain.remote[::2, 1:], _structured.remote)]

_SHUFFLE = GlobalShuffle(100, 10)


def states(data: bytes) -> None:
    """The state of a sampler, as a checkpoint holds it."""
    try:
        state: Any = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(state, dict):
        return
    _SHUFFLE.load_state_dict(state)
    len(_SHUFFLE)
    next(iter(_SHUFFLE), None)


_SHOWN = Path(__file__).with_name("corpus")  # a folder of files, with folders in it
_FILES = _Files({"array": np.zeros(3)}, {"files": Folder(_SHOWN), "a/b": Folder(Path(__file__))})
_SHARED = Domain("shm")


def requests(data: bytes) -> None:
    """What a client asks a server of files: each line is a request. At the end nothing is lent."""
    room = Room(MOST_AT_ONCE)
    with contextlib.closing(Lending(_FILES, _SHARED, _ADDRESS, room)) as lending:
        for line in data.split(b"\n"):
            answer, body = lending.answer(decoded(line))
            encoded(answer, body)
            text = str(answer.get("error", "-"))
            assert not _unprintable(text), f"an error without printable text: {text!a}"
            assert lending.count <= MOST_AT_ONCE
    assert room.take(MOST_AT_ONCE)


class Parser(NamedTuple):
    parse: Callable[[bytes], object]
    may_raise: tuple[type[Exception], ...]


TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # the direction of letters

PARSERS = {
    "frames": Parser(frames, (FabricError, ConnectionError)),
    "cards": Parser(cards, (FabricError,)),
    "answers": Parser(answers, (FabricError, ConnectionError)),
    "plain_objects": Parser(plain_objects, (FabricError,)),
    "regions": Parser(regions, (FabricError,)),
    "names": Parser(names, (FabricError,)),
    "states": Parser(states, (FabricError,)),
    "requests": Parser(requests, (ConnectionError,)),
}


def _unprintable(text: str) -> bool:
    return any(category(c) in ("Cc", "Zl", "Zp") or c in TURNS for c in text)


def tried(parser: Parser) -> Callable[[bytes], None]:
    """What atheris calls: the parser, with the errors that it may raise looked at."""

    def one_input(data: bytes) -> None:
        try:
            parser.parse(data)
        except parser.may_raise as error:
            text = str(error)
            assert text and not _unprintable(text), f"an error without printable text: {text!a}"

    return one_input


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(*PARSERS)
        sys.exit()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], tried(PARSERS[sys.argv[1]]))
    atheris.Fuzz()
