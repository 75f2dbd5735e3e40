"""The states of samplers: what they tell, which ones are refused, and the one that all ranks go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyfab import versions
from pyfab.core.buffers import whole
from pyfab.core.errors import InvalidArgumentError
from pyfab.meeting.frames import shown

if TYPE_CHECKING:
    from pyfab.group.group import Group

_MOST = 2**64 - 1


class Place(NamedTuple):
    """A place in an order."""

    seed: int
    epoch: int
    cursor: int  # samples of the epoch that all ranks together have drawn
    n: int  # samples of the epoch


def written(place: Place, order: int) -> dict[str, int]:
    """The state that tells of a place in an order. order: the number of its permutations, 0 for none."""
    return {"format": versions.SAMPLER_STATE, "shuffle": order, **place._asdict()}


def read(state: Any, lengths: Sequence[int], order: int) -> Place:
    """The place that a state tells of. InvalidArgumentError unless it is one of this order, of a length that there was."""
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(
            f"the state is of type {type(state).__name__}; it is the dict that state_dict() of a sampler or loader returned"
        )
    missing = {"seed", "epoch", "cursor", "n", *(["shuffle"] if "format" in state else [])} - set(state)
    if missing:
        raise InvalidArgumentError(
            f"the state lacks {', '.join(sorted(missing))} and has {shown(list(state))}: it is of"
            " something else; give what state_dict() of a sampler or loader of pyfab returned"
        )
    n = whole(state["n"])
    if n is None or n not in lengths:
        had = f", before samples were appended {', '.join(map(str, lengths[:-1]))}" if lengths[1:] else ""
        raise InvalidArgumentError(
            f"the state is of a data set of {shown(state['n'])} samples, this one has {lengths[-1]}{had}: give the data set that"
            " it was made with, or begin a new epoch"
        )
    _check_order(state, order)
    return Place(
        _number(state, "seed", _MOST), _number(state, "epoch", _MOST), _number(state, "cursor", n), n
    )


def earliest(group: Group, state: Any, lengths: Sequence[int], order: int) -> Place:
    """The earliest of the places that all ranks of a group give. Collective; if one is refused, all ranks raise."""
    places = [read(given, lengths, order) for given in group.allgather(state)]
    for rank, place in enumerate(places):
        if place.seed != places[0].seed:
            raise InvalidArgumentError(
                f"rank {rank} would go on in the order of seed {place.seed}, rank 0 in that of seed {places[0].seed}: load the"
                " state of one training on all ranks"
            )
    return min(places)


def _check_order(state: Mapping[str, Any], order: int) -> None:
    """Refuses a state of another format or order. States that name no format are older than the first one, which names both."""
    if state.get("format", 0) not in (0, versions.SAMPLER_STATE):
        raise InvalidArgumentError(
            f"the state is of format {shown(state['format'])}, this library reads format {versions.SAMPLER_STATE}: go on with the"
            " version of pyfab that wrote it, or begin a new epoch"
        )
    found = state.get("shuffle", order)
    if found == order:
        return
    if not found or not order:
        which, other = ("shuffle=True", False) if found else ("shuffle=False", True)
        raise InvalidArgumentError(
            f"the state is of a sampler with {which}, this one has shuffle={other}: it would repeat samples and leave others out;"
            f" make the sampler with {which}, or begin a new epoch"
        )
    raise InvalidArgumentError(
        f"the state is of an order by shuffle {shown(found)}, this sampler has shuffle {order}: the rest of the epoch would"
        " repeat samples and leave others out; go on with the kind of sampler, its arguments and the version of pyfab that wrote"
        " it, or begin a new epoch"
    )


def _number(state: Mapping[str, Any], name: str, most: int) -> int:
    value = whole(state[name])
    if value is None or not 0 <= value <= most:
        raise InvalidArgumentError(
            f"the state has {name}={shown(state[name])}; it is a number from 0 to {most}: it is damaged, or of something else;"
            " begin a new epoch"
        )
    return value
