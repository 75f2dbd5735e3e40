"""The part of a domain that the objects made from it know. `Domain` adds the calls that make them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from typing import TypeAlias

from pyfab import _core
from pyfab.core.addressing.key_ring import KeyRing
from pyfab.core.enums import AVType
from pyfab.core.info import Info
from pyfab.core.sync_log import SyncLog

__all__ = ["OPEN", "DomainBase", "DomainOptions", "PendingEvents"]


@dataclasses.dataclass(frozen=True)
class DomainOptions:
    """How a domain was opened, as far as the objects made from it depend on that."""

    auth_key_size: int
    av_auth_keys: bool
    av_type: AVType
    # Programs of an old interface version expect that keys of single regions and endpoints are ignored (fi_mr(3)).
    ignores_auth_keys: bool
    manual_progress: bool
    peer_deadline: float
    # The core asks the policy for as long as something in Python can start operations, so everything keeps it alive.
    rail_policy: _core.RailPolicy | None


Subject: TypeAlias = tuple[object, object]
"""What an event is about: the context that the program gave to the call, and the object that the call was made on."""


class PendingEvents:
    """The subjects of events that have not been read yet. An event itself carries only a number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # is held for every access to the two dictionaries
        self.registrations: dict[int, Subject] = {}  # by the number of the region
        self.insertions: dict[int, Subject] = {}  # by the number of the call


OPEN: weakref.WeakSet[DomainBase] = weakref.WeakSet()
"""The domains of this process, until they are collected."""
_numbers = itertools.count()


class DomainBase:
    """An open domain without the objects that it makes."""

    def __init__(
        self, core: _core.DomainCore, info: Info, options: DomainOptions, sync_log: SyncLog | None
    ) -> None:
        self._core, self._info, self._options, self._sync_log = core, info, options, sync_log
        self._owned: weakref.WeakSet[object] = weakref.WeakSet()
        # This lock guards what is bound to what, so that nothing is bound to an object that closes meanwhile.
        self._binding = threading.Lock()
        self._pending = PendingEvents()
        self._registers_asynchronously = False
        self._number = next(_numbers)  # which domain of this process it is
        OPEN.add(self)

    @property
    def info(self) -> Info:
        """What the open domain offers, and its limits."""
        return self._info

    @property
    def auth_keys(self) -> KeyRing:
        """The authorization keys of the domain. Peers need one of them. The `KeyRing` also replaces them."""
        return KeyRing(self._core)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed
