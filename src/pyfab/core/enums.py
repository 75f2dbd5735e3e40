"""Flags and constants. Values that have a counterpart in libfabric mean the same; their numbers are the library's own."""

from __future__ import annotations

import enum
from typing import Any

__all__ = [
    "ADDR_NOTAVAIL",
    "ADDR_UNSPEC",
    "FI_LOCAL_MR",
    "FI_MR_ALLOCATED",
    "FI_MR_BASIC",
    "FI_MR_ENDPOINT",
    "FI_MR_LOCAL",
    "FI_MR_MMU_NOTIFY",
    "FI_MR_PROV_KEY",
    "FI_MR_RAW",
    "FI_MR_RMA_EVENT",
    "FI_MR_SCALABLE",
    "FI_MR_VIRT_ADDR",
    "FI_RAW_MR",
    "KEY_NOTAVAIL",
    "AVFlag",
    "AVType",
    "Access",
    "AtomicOp",
    "Caps",
    "CompletionFlag",
    "Delivery",
    "EPType",
    "InsertFlag",
    "MRFlag",
    "MRMode",
    "RMAEvent",
]


def flag_names(flags: enum.IntFlag) -> str:
    """``REMOTE_READ, REMOTE_WRITE``: the single bits, for tables."""
    return ", ".join(str(flag.name) for flag in type(flags) if flag.bit_count() == 1 and flag in flags)


class Access(enum.IntFlag):
    """Rights of a memory region (fi_mr(3))."""

    SEND = 1
    RECV = 2
    READ = 4
    WRITE = 8
    REMOTE_READ = 16
    REMOTE_WRITE = 32
    LOCAL = SEND | RECV | READ | WRITE
    REMOTE = REMOTE_READ | REMOTE_WRITE
    ALL = LOCAL | REMOTE


class MRMode(enum.IntFlag):
    """What a domain requires of programs that register memory (fi_mr(3)). SCALABLE, no bit, is the default: nothing."""

    SCALABLE = 0
    BASIC = 1 << 0
    LOCAL = 1 << 2
    RAW = 1 << 3
    VIRT_ADDR = 1 << 4
    ALLOCATED = 1 << 5
    PROV_KEY = 1 << 6
    MMU_NOTIFY = 1 << 7
    RMA_EVENT = 1 << 8
    ENDPOINT = 1 << 9


# The names of fi_mr(3), old ones included.
FI_MR_BASIC = MRMode.BASIC
FI_MR_SCALABLE = MRMode.SCALABLE
FI_MR_LOCAL = FI_LOCAL_MR = MRMode.LOCAL
FI_MR_RAW = FI_RAW_MR = MRMode.RAW
FI_MR_VIRT_ADDR = MRMode.VIRT_ADDR
FI_MR_ALLOCATED = MRMode.ALLOCATED
FI_MR_PROV_KEY = MRMode.PROV_KEY
FI_MR_MMU_NOTIFY = MRMode.MMU_NOTIFY
FI_MR_RMA_EVENT = MRMode.RMA_EVENT
FI_MR_ENDPOINT = MRMode.ENDPOINT


class MRFlag(enum.IntFlag):
    """Properties of one memory region."""

    PMEM = 1  #: backed by a file: peers may ask for Delivery.COMMIT
    RMA_EVENT = 2  #: in MRMode.RMA_EVENT: starts disabled, takes counters
    AUTH_KEY = 1 << 12  #: auth_key is (address vector, handle of an authorization key)


class InsertFlag(enum.IntFlag):
    """How addresses are inserted into an address vector (fi_av(3))."""

    MORE = 1  #: more insertions follow; nothing waits for them
    SYNC_ERR = 2  #: the context of the call gets the outcome of each address
    EVENT = 4  #: the outcome comes as events
    USER_ID = 8  #: before the call, the array of handles holds what completions are to report
    #: The handles of the call are those of authorization keys: to insert under, to look up, or to receive from.
    AUTH_KEY = 16


class RMAEvent(enum.IntFlag):
    """What a counter that is bound to a region counts."""

    REMOTE_READ = 1
    REMOTE_WRITE = 2


class Caps(enum.IntFlag):
    """What a provider can do."""

    RMA = 1
    ATOMIC = 2
    READ = 4
    WRITE = 8
    REMOTE_READ = 16
    REMOTE_WRITE = 32
    RMA_EVENT = 64
    REMOTE_DATA = 128
    LOCAL_COMM = 256
    REMOTE_COMM = 512
    RMA_PMEM = 1024
    MSG = 2048
    TAGGED = 4096
    DIRECTED_RECV = 8192
    MULTI_RECV = 16384
    NAMED_RX_CTX = 32768


class Delivery(enum.IntFlag):
    """How far an operation must have come to count as complete (fi_cq(3)). The default is DELIVERY, for messages TRANSMIT."""

    INJECT = 1  #: the local buffer may be reused
    TRANSMIT = 2  #: the peer's node has it: it no longer depends on this process
    DELIVERY = 4  #: visible at the target
    COMMIT = 8  #: durable at the target; the region must be registered with MRFlag.PMEM


class SendFlag(enum.IntFlag):
    """Flags of one message, combined with its Delivery."""

    UNORDERED = 16  #: may overtake messages, puts and atomics sent before it, and take any rail


class CompletionFlag(enum.IntFlag):
    """What a completion is about."""

    RMA = 1
    READ = 2
    WRITE = 4
    ATOMIC = 8
    REMOTE_WRITE = 16
    REMOTE_CQ_DATA = 32
    MSG = 64
    TAGGED = 128
    SEND = 256
    RECV = 512
    MULTI_RECV = 1024  #: the memory of a receive for many messages is free again
    MORE = 2048  #: more entries of the same operation follow
    AUTH_KEY = 4096  #: source stands for the authorization key of a sender that is not in the address vector
    #: The operation failed after it had been told complete, at a level that does not wait for the target.
    LATE = 8192


class AtomicOp(enum.IntEnum):
    """Operations of fi_atomic(3). CSWAP and the ones after it are for `compare_atomic`."""

    MIN = 0
    MAX = 1
    SUM = 2
    PROD = 3
    LOR = 4
    LAND = 5
    BOR = 6
    BAND = 7
    LXOR = 8
    BXOR = 9
    ATOMIC_READ = 10
    ATOMIC_WRITE = 11
    CSWAP = 12
    CSWAP_NE = 13
    CSWAP_LE = 14
    CSWAP_LT = 15
    CSWAP_GE = 16
    CSWAP_GT = 17
    MSWAP = 18


class AVFlag(enum.IntFlag):
    """How an address vector is opened (fi_av_open(3)). Each flag means the same as its keyword."""

    EVENT = 1  #: asynchronous
    READ = 2  #: read_only
    SYMMETRIC = 4  #: symmetric
    USER_ID = 8  #: user_id


class AVType(enum.IntEnum):
    """The kind of an address vector (fi_av(3)). In libfabric, handles of a MAP are opaque; here both kinds count from 0."""

    UNSPEC = 0
    MAP = 1
    TABLE = 2


class EPType(enum.IntEnum):
    """Kinds of endpoints (fi_endpoint(3)). This library has one: RDM, reliable and unconnected."""

    UNSPEC = 0
    MSG = 1
    DGRAM = 2
    RDM = 3


class _Sentinel(int):
    """All ones for the core, and still told apart from other sentinels of the same number."""

    _name: str

    def __new__(cls, name: str) -> _Sentinel:
        self = super().__new__(cls, 2**64 - 1)
        self._name = name
        return self

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, _Sentinel) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        return (_sentinel, (self._name,))


def _sentinel(name: str) -> _Sentinel:
    return _SENTINELS[name]


_SENTINELS = {name: _Sentinel(name) for name in ("KEY_NOTAVAIL", "ADDR_NOTAVAIL", "ADDR_UNSPEC")}
KEY_NOTAVAIL: int = _SENTINELS["KEY_NOTAVAIL"]
ADDR_NOTAVAIL: int = _SENTINELS["ADDR_NOTAVAIL"]
ADDR_UNSPEC: int = _SENTINELS["ADDR_UNSPEC"]
