"""What one client of a server asks, and what it reads at the moment: things that stay where they are until it gives them back."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import threading
from typing import Any, NamedTuple, TypeGuard

from pyfab.core.domain import Domain
from pyfab.meeting.frames import MAX_HEADER, Header, shown
from pyfab.tools.served import MOST_LISTING, MOST_NAME, Contents, Opened, Served

MOST_AT_ONCE = 64
"""The most things that a client has at once: each costs the server two descriptors."""

FILES_OF_LOAN = 16
"""Names that clients ask for together."""

_BUSY: Header = {"busy": True}
_SCARCE = {errno.EMFILE, errno.ENFILE}  # until others have let something go


class Room:
    """How many things all clients of a server may have at once. Used by several threads."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Takes room for so many things, if there is."""
        with self._lock:
            enough = count <= self._free
            self._free -= count if enough else 0
            return enough

    def give_back(self, count: int) -> None:
        """There is room for so many again."""
        with self._lock:
            self._free += count


class _Loan(NamedTuple):
    names: int
    opened: list[Opened]
    kept: contextlib.ExitStack


class Lending:
    """Answers what one client asks (`pyfab.tools.serve`). Used by one thread."""

    def __init__(self, served: Served, domain: Domain, address: bytes, room: Room) -> None:
        self._served, self._domain, self._room = served, domain, room
        self._address = base64.b64encode(address).decode()
        self._loans: dict[int, _Loan] = {}
        self._next = 0

    @property
    def count(self) -> int:
        """Names that the client has asked for and not given back."""
        return sum(loan.names for loan in self._loans.values())

    def answer(self, request: Header) -> tuple[Header, bytes]:
        """What a client is told, whatever it asks: a header and a body."""
        operation = request.get("op")
        try:
            if operation == "list":
                return self._list()
            if operation == "look":
                return self._look(request.get("name"))
            if operation == "lend":
                return self._lend(request.get("names")), b""
            if operation == "return":
                return self._take_back(request.get("loan")), b""
            if operation == "keep":
                return {}, b""
        except OSError as error:
            return _told(error), b""
        return {"error": f"the server knows no operation {shown(operation)}"}, b""

    def close(self) -> None:
        """Takes all back."""
        with contextlib.ExitStack() as every:
            for loan in self._loans.values():
                every.push(loan.kept)
            self._loans.clear()

    def _list(self) -> tuple[Header, bytes]:
        told = {"arrays": self._served.describe(), "folders": self._served.folders()}
        text = json.dumps(told).encode()
        if len(text) > MOST_LISTING:
            raise OSError(errno.EFBIG, f"a list of {len(told['arrays'])} names is too long to be told")
        return (told, b"") if len(text) <= MAX_HEADER else ({}, text)

    def _look(self, path: object) -> tuple[Header, bytes]:
        found = self._served.look(path) if _is_name(path) else None
        if found is None:
            return {}, b""
        if isinstance(found, Contents):
            return {"folder": True}, json.dumps(found.entries).encode()
        return {"file": found}, b""

    def _lend(self, names: Any) -> Header:
        """Opens what has these names; what cannot be opened has an "error" in its place."""
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            return {"error": f"names to lend are a list of texts, not {shown(names)}"}
        if self.count + len(names) > MOST_AT_ONCE:
            return {
                "error": f"{self.count} + {len(names)} names at once; a client has at most {MOST_AT_ONCE}"
            }
        with contextlib.ExitStack() as kept:
            if not self._room.take(len(names)):
                return _BUSY
            kept.callback(self._room.give_back, len(names))
            opened: list[Opened] = []
            lent = [self._one(name, opened, kept) for name in names]
            number, self._next = self._next, self._next + 1
            self._loans[number] = _Loan(len(names), opened, kept.pop_all())
        return {"loan": number, "address": self._address, "lent": lent}

    def _one(self, name: str, opened: list[Opened], kept: contextlib.ExitStack) -> Header:
        try:
            found = self._served.open(name, self._domain) if _is_name(name) else None
        except OSError as error:
            if error.errno in _SCARCE:
                raise
            return _told(error)
        if found is None:
            return _told(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        kept.callback(found.close)
        opened.append(found)
        if found.region is None:
            return {"size": 0, "version": found.version}
        region = base64.b64encode(found.region.remote.to_bytes()).decode()
        return {"size": found.region.nbytes, "version": found.version, "region": region}

    def _take_back(self, number: Any) -> Header:
        """Closes a loan, and says which of its things have changed meanwhile, by their places among those that were opened."""
        loan = self._loans.pop(number, None) if isinstance(number, int) else None
        if loan is None:
            return {"error": f"there is no loan {shown(number)}"}
        with loan.kept:
            return {"changed": [place for place, opened in enumerate(loan.opened) if _has_changed(opened)]}


def _told(error: OSError) -> Header:
    """An error as the client raises it. It names no path of this host."""
    if error.errno in _SCARCE:
        return _BUSY
    return {"error": error.strerror or str(error), "errno": error.errno or errno.EIO}


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and len(name) <= MOST_NAME


def _has_changed(opened: Opened) -> bool:
    try:
        return opened.changed()
    except OSError:  # nobody knows whether it has not
        return True
