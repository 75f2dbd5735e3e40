"""Batches of several loaders in turn, by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pyfab import versions
from pyfab.core.buffers import whole
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _states
from pyfab.data._loader import Loader
from pyfab.data._shuffle import GlobalShuffle
from pyfab.meeting.frames import shown

if TYPE_CHECKING:
    from pyfab.group.group import Group

_BLOCK = 1024  # choices that are drawn at a time


class Mix:
    """Batches of several loaders in turn, chosen at random by weights. All ranks choose the same, so a step is of one store.

    loaders: each with its weight, a positive number. Each has a `GlobalShuffle` as sampler; do not iterate over them elsewhere.
    seed: the choices depend only on it and on the number of the batch. batches: how many an iteration has; by default it has no
    end.

    It is one stream: an iteration goes on where the one before ended. When a loader has reached the end of its epoch, it begins
    the next one. So each sample of a store is given once before any is given again. The stream goes on exactly from a state, on
    any number of ranks. Not thread-safe.
    """

    def __init__(self, loaders: Mapping[Loader, float], *, seed: int = 0, batches: int | None = None) -> None:
        self._loaders = list(loaders)
        weights = np.array([float(loaders[loader]) for loader in self._loaders])
        if not len(weights) or not np.isfinite(weights).all() or (weights <= 0).any():
            raise InvalidArgumentError(
                f"weights {weights.tolist()}: one or more loaders, each with a positive number"
            )
        if (batches is not None and batches < 1) or not 0 <= seed < 2**64:
            raise InvalidArgumentError(
                f"batches={batches}, seed={seed}: batches is 1 or more, seed below 2**64"
            )
        self._orders: list[GlobalShuffle] = [loader._shuffle("a mix") for loader in self._loaders]
        if len(set(map(id, self._orders))) < len(self._orders):
            raise InvalidArgumentError("two loaders of a mix have one sampler: make one for each")
        for order in self._orders:
            if not order._count(0, order.step, order.n):
                raise InvalidArgumentError(
                    f"{order!r} has no batches in an epoch, so nothing can be chosen from it"
                )
        self._ends = np.cumsum(weights) / weights.sum()
        self.seed, self.batches = seed, batches
        self._drawn: tuple[int, Any] = (-1, None)  # the number of a block, and its choices
        self._passes: list[Iterator[Any] | None] = [None] * len(self._loaders)
        self._position = 0
        self._begun = self._begin()
        self.source: Loader | None = None
        """The loader of the batch that was given last."""

    def _begin(self) -> tuple[int, list[tuple[int, int]]]:
        """The position, and the place of each order, of now."""
        return self._position, [order._begin for order in self._orders]

    def _choices(self, start: int, stop: int) -> Any:
        """The numbers of the loaders of these batches of the stream."""
        parts = [np.empty(0, np.int64)]
        for block in range(start // _BLOCK, -(-stop // _BLOCK)):
            if self._drawn[0] != block:
                # The raw numbers of Philox are the same in all versions of NumPy.
                raw = np.random.Philox(key=np.array([self.seed, block], np.uint64)).random_raw(_BLOCK)
                chosen = np.searchsorted(self._ends[:-1], (raw >> np.uint64(11)) * 2.0**-53, "right")
                self._drawn = block, chosen
            first = block * _BLOCK
            parts.append(self._drawn[1][max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    def __iter__(self) -> Iterator[Any]:
        self._begun = self._position, self._places(self._position - self._begun[0])
        return _Part(self)

    def _next(self) -> Any:
        number = int(self._choices(self._position, self._position + 1)[0])
        loader, batches = self._loaders[number], self._passes[number]
        try:
            batch = next(batches if batches is not None else iter(()))
        except StopIteration:
            batch = self._first(number)
        self._position += 1
        self.source = loader
        return batch

    def _first(self, number: int) -> Any:
        """The first batch of a new iteration of a loader."""
        # Where more ranks go on, a loaded place may have no whole step left in its epoch. Then the next epoch begins.
        for _ in range(2):
            batches = self._passes[number] = iter(self._loaders[number])
            for batch in batches:
                return batch
        raise InvalidArgumentError(
            f"{self._orders[number]!r} has no batches in an epoch, so nothing can be chosen from it"
        )

    def _places(self, batches: int) -> list[tuple[int, int]]:
        """Where each order is after so many batches of the latest iteration."""
        position, places = self._begun
        counts = np.bincount(self._choices(position, position + batches), minlength=len(self._orders))
        return [
            order._after(place, int(count))
            for order, place, count in zip(self._orders, places, counts, strict=True)
        ]

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The place in the stream after the batch that was given last, or after `batches` batches of the latest iteration.

        InvalidArgumentError if fewer batches were given.
        """
        given = self._position - self._begun[0]
        if batches is not None and not 0 <= batches <= given:
            raise InvalidArgumentError(f"batches={batches}: the latest iteration has given {given}")
        done = given if batches is None else batches
        return {
            "format": versions.SAMPLER_STATE,
            "seed": self.seed,
            "position": self._begun[0] + done,
            "orders": [
                order._written(place) for order, place in zip(self._orders, self._places(done), strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], *, group: Group | None = None) -> None:
        """Goes on from a state. It may come from any number of ranks, but must be of the same number of loaders.

        group: as in `Loader.load_state_dict`: all go on from the earliest state of its ranks. InvalidArgumentError if a state
        does not fit.
        """
        states = [state] if group is None else group.allgather(state)
        for given in states:
            self._check_state(given)
        first = min(states, key=lambda given: given["position"])
        for order, one in zip(self._orders, first["orders"], strict=True):  # all, before any is changed
            _states.read(one, order._totals if order._follows else [order.n], order._order())
        for loader, order, one in zip(self._loaders, self._orders, first["orders"], strict=True):
            if group is not None:
                order.set_ranks(group.rank, group.size)
            loader.load_state_dict(one)
        self.seed, self._position = int(first["seed"]), int(first["position"])
        self._drawn = (-1, None)
        self._passes = [None] * len(self._loaders)
        self._begun = self._begin()

    def _check_state(self, given: Any) -> None:
        found = given if isinstance(given, Mapping) else {}
        numbers = [whole(found.get(name)) for name in ("seed", "position")]
        if not all(number is not None and 0 <= number < 2**64 for number in numbers):
            raise InvalidArgumentError(
                f"the state is of something else, or damaged: {shown(given)}; give what state_dict() of a mix returned"
            )
        orders, format_ = given.get("orders", ()), given.get("format")
        if format_ != versions.SAMPLER_STATE or len(orders) != len(self._orders):
            raise InvalidArgumentError(
                f"the state is of a mix of {len(orders)} loaders and of format {shown(format_)}, this one has {len(self._orders)}"
                f" and format {versions.SAMPLER_STATE}"
            )

    def __repr__(self) -> str:
        shares = np.diff(self._ends, prepend=0.0).round(4).tolist()
        return (
            f"Mix({len(self._loaders)} loaders by {shares}, seed={self.seed}, {self._position} batches given)"
        )


class _Part(Iterator[Any]):
    """An iteration of a mix."""

    def __init__(self, mix: Mix) -> None:
        self._mix, self._left = mix, mix.batches

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        batch = self._mix._next()
        if self._left is not None:
            self._left -= 1
        return batch
