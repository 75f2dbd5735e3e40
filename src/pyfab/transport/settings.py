"""What a transport is made of: its tunables, and which of the links that were found become modules."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from pyfab import _core
from pyfab.core.addressing.link_traits import by_latency
from pyfab.core.enums import Caps, Delivery, EPType, MRMode
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.info import Info, make_info

__all__ = ["REFUSED_MODES", "Candidate", "Limits", "Tunables", "candidates", "contexts_for", "slice_of"]

_PREFIX = "PYFAB_TRANSPORT_"
REFUSED_MODES = MRMode.LOCAL | MRMode.RAW | MRMode.MMU_NOTIFY | MRMode.RMA_EVENT
_NEEDED = Caps.RMA | Caps.ATOMIC | Caps.READ | Caps.WRITE | Caps.REMOTE_READ | Caps.REMOTE_WRITE

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Tunables:
    """How a transport works. A value is that of the keyword, else that of PYFAB_TRANSPORT_<NAME>, else the default below."""

    mode: Literal["one_sided", "two_sided", "both"] = "both"
    completions_per_read: int = 64  #: events that one progress() handles at most in each context
    progress: Literal["unspecified", "auto", "manual", "busy"] = "unspecified"  #: unspecified is auto
    contexts: int = 1  #: per module
    single_context: bool = False  #: one context, whatever `contexts` says
    progress_threshold: int = 64  #: outstanding operations beyond which posting makes progress too
    queue_depth: int = 1024  #: outstanding operations of a context towards a peer; more are TRY_AGAIN
    posted_receives: int = 10  #: per context, for messages
    message_size: int = 4096  #: bytes of the largest message
    max_transfer: int = 8 << 20  #: bytes of the largest put or get
    inject: bool = True  #: small messages leave without a completion
    device_memory: bool = True  #: memory of devices may be registered where a link can
    include: tuple[str, ...] = ()  #: only these providers or links are opened
    exclude: tuple[str, ...] = ()  #: these providers or links are not opened

    def __post_init__(self) -> None:
        for name, allowed in (
            ("mode", ("one_sided", "two_sided", "both")),
            ("progress", ("unspecified", "auto", "manual", "busy")),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidArgumentError(
                    f"{name}={getattr(self, name)!r}: it is one of {', '.join(allowed)}"
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(field.default) is int and (type(value) is not int or value < 1):
                raise InvalidArgumentError(f"{field.name}={value!r}: it is an int from 1 on")
            if type(field.default) is bool and type(value) is not bool:
                raise InvalidArgumentError(f"{field.name}={value!r}: it is True or False")
        if self.include and self.exclude:
            raise InvalidArgumentError(
                f"include={','.join(self.include)} and exclude={','.join(self.exclude)}: give one of them"
            )

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Tunables:
        """Reads the keywords, then the environment for those not given. InvalidArgumentError names what is wrong."""
        env = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = _PREFIX + field.name.upper()
            if given.get(field.name) is not None:
                value = given.pop(field.name)
                values[field.name] = tuple(value) if isinstance(field.default, tuple) else value
            elif name in env:
                values[field.name] = _parse(name, env[name], field.default)
            given.pop(field.name, None)
        if given:
            raise InvalidArgumentError(f"unknown tunables: {', '.join(sorted(given))}")
        return cls(**values)


def _parse(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in known:
            raise InvalidArgumentError(f"{name}={text!r}: it is 1 or 0")
        return known[text.lower()]
    if isinstance(default, int):
        if not (text.isascii() and text.isdigit()):
            raise InvalidArgumentError(f"{name}={text!r}: it is a number")
        return int(text)
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


class Candidate(NamedTuple):
    """One link that was looked at: what it is, whether it is taken, and why or why not."""

    link: str
    taken: bool
    reason: str


class Limits(NamedTuple):
    """The limits of one module: bytes of its largest put, get and injected message, and alignments (0: none)."""

    max_put: int
    max_get: int
    inject_size: int
    put_alignment: int = 0
    get_alignment: int = 0

    @classmethod
    def of(cls, info: Info, tunables: Tunables) -> Limits:
        """What the device allows, or less where the tunables set less."""
        largest = min(info.max_rma_size, tunables.max_transfer)
        return cls(largest, largest, info.inject_size)


def candidates(
    tunables: Tunables, mr_mode: MRMode = MRMode.SCALABLE, found: Sequence[Info] | None = None
) -> tuple[list[Info], list[Candidate]]:
    """The links that can carry a transport, one for each device, and the verdict on every link that was looked at."""
    taken: dict[str, Info] = {}
    verdicts = []
    reasons: dict[int, str] = {}
    if found is None:
        entries = _core.discover()
        found = [make_info(entry) for entry in entries]
        reasons = {i: str(entry["why"]) for i, entry in enumerate(entries) if not entry["usable"]}
    for i, info in enumerate(found):
        reason = reasons.get(i) or _objection(info, tunables, mr_mode)
        device = device_of(info)
        if not reason and device in taken:
            reason = f"its device is in use through {taken[device].spec}"
        if not reason:
            taken[device] = info
        verdicts.append(Candidate(info.spec, not reason, reason or "reliable, with put, get and atomics"))
    return [
        taken[name] for name in sorted(taken, key=lambda name: (by_latency(taken[name].links[0]), name))
    ], verdicts


def device_of(info: Info) -> str:
    """The name of a link's device. Two providers on one device have the same."""
    return info.nic.name if info.nic else info.links[0]


def _objection(info: Info, tunables: Tunables, mr_mode: MRMode) -> str:
    names = {info.provider, info.spec, *info.links}
    if tunables.include and not names & set(tunables.include):
        return f"not in include={','.join(tunables.include)}"
    if names & set(tunables.exclude):
        return f"in exclude={','.join(tunables.exclude)}"
    if info.ep_type != EPType.RDM:
        return f"its endpoints are {info.ep_type.name}, not reliable and unconnected"
    if info.caps & _NEEDED != _NEEDED:
        return f"it lacks {_NEEDED & ~info.caps!r}"
    if not info.delivery & Delivery.DELIVERY:
        return "its completions do not say that what was put is visible (Delivery.DELIVERY)"
    refused = (mr_mode | info.mr_mode) & REFUSED_MODES
    return f"it demands {refused!r}, which a transport does not meet" if refused else ""


def slice_of(modules: Sequence[T], local_rank: int, local_size: int) -> list[T]:
    """The share of one process of the node. Each gets modules of its own if there are enough, else all modules."""
    count = len(modules)
    if count < local_size:
        return list(modules)
    return list(modules[local_rank * count // local_size : (local_rank + 1) * count // local_size])


def contexts_for(tunables: Tunables, limits: Iterable[int]) -> int:
    """How many contexts each module has. Asking for more than a device has is an error, or a warning if it has only one."""
    if tunables.single_context:
        return 1
    limit = min(limits)
    if tunables.contexts > 1 and limit == 1:
        warnings.warn(
            f"contexts={tunables.contexts}: the device has one context, so all threads share it",
            RuntimeWarning,
            stacklevel=3,
        )
        return 1
    if tunables.contexts > limit:
        raise InvalidArgumentError(f"contexts={tunables.contexts}: the device has {limit}")
    return tunables.contexts
