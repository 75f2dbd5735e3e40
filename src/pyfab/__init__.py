"""One-sided communication for Python: put and get NumPy arrays in the memory of other processes and machines.

with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
    region = domain.register(array, pyfab.Access.REMOTE)      # give region.remote and endpoint.address to the peer
    peer = endpoint.av.insert(address_of_the_peer)
    endpoint.write(rows, peer, remote[10:20]).result()
"""

from __future__ import annotations

import importlib
from types import ModuleType

try:
    from pyfab import _core
except ImportError as error:  # pragma: no cover - depends on a broken installation
    raise ImportError(
        "the compiled part of pyfab is missing or does not fit this Python; reinstall with "
        f"`pip install --force-reinstall pyfab-rdma`, or `pip install .` in a checkout ({error})"
    ) from error

from pyfab.core.address_vector import AddressVector
from pyfab.core.addressing.addresses import parse_addr
from pyfab.core.addressing.handles import group_addr, rx_addr
from pyfab.core.addressing.key_ring import KeyRing
from pyfab.core.awaiting import await_operation
from pyfab.core.dmabuf import DmaBuf
from pyfab.core.domain import Domain
from pyfab.core.endpoint import Context, Endpoint, Operation, Prepared
from pyfab.core.enums import (
    ADDR_NOTAVAIL,
    ADDR_UNSPEC,
    FI_LOCAL_MR,
    FI_MR_ALLOCATED,
    FI_MR_BASIC,
    FI_MR_ENDPOINT,
    FI_MR_LOCAL,
    FI_MR_MMU_NOTIFY,
    FI_MR_PROV_KEY,
    FI_MR_RAW,
    FI_MR_RMA_EVENT,
    FI_MR_SCALABLE,
    FI_MR_VIRT_ADDR,
    FI_RAW_MR,
    KEY_NOTAVAIL,
    Access,
    AtomicOp,
    AVFlag,
    AVType,
    Caps,
    CompletionFlag,
    Delivery,
    EPType,
    InsertFlag,
    MRFlag,
    MRMode,
    RMAEvent,
    SendFlag,
)
from pyfab.core.errors import (
    AccessDeniedError,
    BadFlagsError,
    BoundsError,
    BusyError,
    CanceledError,
    ClosedError,
    EpochError,
    FabricError,
    InsertError,
    InvalidArgumentError,
    KeyInUseError,
    KeyRejectedError,
    NoEventQueueError,
    NotSupportedError,
    OperationTimeout,
    PeerLostError,
    TooSmallError,
    TruncatedError,
    UnreachableError,
)
from pyfab.core.info import Info, Nic, getinfo
from pyfab.core.memory.grant import Grant
from pyfab.core.queues import (
    Completion,
    CompletionQueue,
    Counter,
    Event,
    EventQueue,
    EventType,
)
from pyfab.core.region import MemoryRegion, MRAttr, Range, RawKey, RegionSlice, RemoteRegion
from pyfab.core.sync import SyncStats, Triplet
from pyfab.core.sync_log import SyncReport, SyncWarning
from pyfab.group.group import Group
from pyfab.group.remote_array import RemoteArray
from pyfab.group.window import Window
from pyfab.launch.spawn import spawn
from pyfab.notebook.live import Live, live
from pyfab.tools.nearness import nearest
from pyfab.tools.open_metrics import metrics, serve_metrics
from pyfab.tracing.spans import spans
from pyfab.tracing.trace import trace
from pyfab.transport.handles import Registration, RemoteHandle
from pyfab.transport.operations import Outcome
from pyfab.transport.peers import TransportPeer
from pyfab.transport.settings import Tunables
from pyfab.transport.transport import Transport

__version__: str = _core.__version__

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
    "AccessDeniedError",
    "AddressVector",
    "AtomicOp",
    "BadFlagsError",
    "BoundsError",
    "BusyError",
    "CanceledError",
    "Caps",
    "ClosedError",
    "Completion",
    "CompletionFlag",
    "CompletionQueue",
    "Context",
    "Counter",
    "Delivery",
    "DmaBuf",
    "Domain",
    "EPType",
    "Endpoint",
    "EpochError",
    "Event",
    "EventQueue",
    "EventType",
    "FabricError",
    "Grant",
    "Group",
    "Info",
    "InsertError",
    "InsertFlag",
    "InvalidArgumentError",
    "KeyInUseError",
    "KeyRejectedError",
    "KeyRing",
    "Live",
    "MRAttr",
    "MRFlag",
    "MRMode",
    "MemoryRegion",
    "Nic",
    "NoEventQueueError",
    "NotSupportedError",
    "Operation",
    "OperationTimeout",
    "Outcome",
    "PeerLostError",
    "Prepared",
    "RMAEvent",
    "Range",
    "RawKey",
    "RegionSlice",
    "Registration",
    "RemoteArray",
    "RemoteHandle",
    "RemoteRegion",
    "SendFlag",
    "SyncReport",
    "SyncStats",
    "SyncWarning",
    "TooSmallError",
    "Transport",
    "TransportPeer",
    "Triplet",
    "TruncatedError",
    "Tunables",
    "UnreachableError",
    "Window",
    "getinfo",
    "group_addr",
    "live",
    "metrics",
    "nearest",
    "parse_addr",
    "rx_addr",
    "serve_metrics",
    "spans",
    "spawn",
    "trace",
]

# Public names are `pyfab.…` in tracebacks and pickles, too, whichever package they are defined in.
for _name in __all__:
    if getattr(globals()[_name], "__module__", "").startswith(f"{__name__}.") and not hasattr(_core, _name):
        globals()[_name].__module__ = __name__

_PARTS = (
    "bench",
    "checkpoint",
    "data",
    "store",
    "testing",
    "torch",
    "weights",
)  # modules that are imported at their first use


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What programs use; the rooms of the package are not shown."""
    return sorted({*__all__, *_PARTS, *(name for name in globals() if name.startswith("__")), "versions"})


_core.set_operation_helpers(CompletionFlag, await_operation)


def load_ipython_extension(shell: object) -> None:
    """``%load_ext pyfab``, which gives a notebook the magics ``%%pyfab`` and ``%pyfab``."""
    from pyfab.notebook.jupyter import load

    load(shell)
