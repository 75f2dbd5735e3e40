"""The functions that measure, and the cases that they measure."""

from __future__ import annotations

import contextlib
import operator
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyfab.bench._facts import machine_facts
from pyfab.bench._measurement import Measurement
from pyfab.bench._operations import MESSAGES
from pyfab.bench._pair import LARGEST, MEMORY, Session, local, new_run, remote
from pyfab.bench._results import Measurements
from pyfab.bench._timing import calibrate, choose_cores, percentile, pinned, samples_in, speed, warm
from pyfab.core.errors import InvalidArgumentError

KIB, MIB = 1 << 10, 1 << 20


class _Metric(NamedTuple):
    unit: str
    sizes: tuple[int, ...]  # measured if none are asked for
    operations: dict[str, str]  # name for users → statement
    default: tuple[str, ...]  # operations that are measured if none are asked for


METRICS = {
    "latency": _Metric(
        "us",
        (8, 64, 512, 4 * KIB, 32 * KIB),
        {"put": "put", "get": "get", "fetch_add": "fetch_add", "message": "message"},
        ("put", "get", "fetch_add", "message"),
    ),
    "bandwidth": _Metric(
        "GB/s",
        (4 * KIB, 64 * KIB, MIB, 16 * MIB),
        {"put": "put_rate", "get": "get_rate", "message": "message_rate"},
        ("put", "get", "message"),
    ),
    "rate": _Metric(
        "Mops",
        (8,),
        {
            "put": "put_rate",
            "get": "get_rate",
            "atomic": "atomic_rate",
            "message": "message_rate",
            "write_many": "write_many",
            "read_many": "read_many",
        },
        ("put", "get", "atomic", "message", "write_many", "read_many"),
    ),
}
_WORD_ONLY = ("fetch_add", "atomic")  # on 8 bytes, whatever sizes are asked for


@dataclass
class _Case:
    metric: str
    operation: str
    statement: str
    size: int
    memory: str
    links: str
    rounds: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)

    def measured(self, link: str) -> Measurement:
        def figure(ns: float) -> float:
            return speed(ns, self.size, METRICS[self.metric].unit)

        return Measurement(
            self.metric,
            self.operation,
            self.size,
            self.memory,
            self.links,
            link,
            METRICS[self.metric].unit,
            figure(statistics.median(self.rounds)),
            figure(percentile(self.samples, 10)),
            figure(percentile(self.samples, 99)),
            tuple(map(figure, self.rounds)),
        )


class _Target(NamedTuple):
    """Where the other side is: a `Listener` at `peer`, or else a process on `core` of this machine."""

    peer: str | None
    token: str | None
    core: int

    def sessions(
        self, specs: Iterable[str], capacity: int
    ) -> Iterator[tuple[str, contextlib.AbstractContextManager[Session]]]:
        """Each spec and a session over it; all sessions are of one run."""
        run = new_run()
        for spec in dict.fromkeys(specs):
            if self.peer is None:
                yield spec, local(spec, capacity, self.core)
            else:
                yield spec, remote(spec, capacity, self.peer, self.token, run)


def latency(
    links: str | Sequence[str] = "shm+tcp", sizes: Sequence[int] | None = None, **how: Any
) -> Measurements:
    """Microseconds of one operation at a time. Put, get and fetch_add are complete at the target; a message is half a round trip.

    links: one spec or several; several take turns. sizes: bytes, multiples of 8. `how` are further arguments of `measure`.
    """
    return measure(("latency",), links, sizes, **how)


def bandwidth(
    links: str | Sequence[str] = "shm+tcp", sizes: Sequence[int] | None = None, **how: Any
) -> Measurements:
    """GB/s (10**9 bytes) of put, get and message, with up to 64 of them, or 64 MiB, under way. Arguments as for `latency`."""
    return measure(("bandwidth",), links, sizes, **how)


def message_rate(
    links: str | Sequence[str] = "shm+tcp", sizes: Sequence[int] | None = None, **how: Any
) -> Measurements:
    """Million operations a second: up to 64 under way with a call for each, or 4096 in one call of write_many and read_many.

    Arguments as for `latency`.
    """
    return measure(("rate",), links, sizes, **how)


def measure(
    metrics: str | Sequence[str] = ("latency", "bandwidth", "rate"),
    links: str | Sequence[str] = "shm+tcp",
    sizes: Sequence[int] | None = None,
    *,
    operations: str | Sequence[str] | None = None,
    memory: str | Sequence[str] = "mapped",
    peer: str | None = None,
    token: str | None = None,
    rounds: int = 10,
    round_ms: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
    partial: bool = False,
) -> Measurements:
    """Measures between this process and another one; all cases take turns, in random order, in each of `rounds` rounds.

    metrics: any of "latency", "bandwidth" and "rate". operations: which of their operations; None: all. memory: the target's,
    "mapped" (made by `Domain.alloc`) or "other" (an ordinary array), or both; messages use none. peer: ``host:port`` of a
    `Listener`, with its `token`; None starts a process on this machine. round_ms: milliseconds that a case takes in one round.
    progress: called with the number of steps done and of all steps. The calling thread is kept on one core meanwhile, the target
    on another. A sample is a batch of at least 0.1 ms, divided by its operations; a round's first fifth is dropped.

    partial: on Ctrl-C, returns what there is by then, marked as `interrupted`; KeyboardInterrupt if that is nothing.

    InvalidArgumentError for what cannot be measured, OSError if the peer cannot be reached, FabricError FI_EIO if bytes are lost.
    """
    if rounds < 1 or round_ms <= 0:
        raise InvalidArgumentError(f"rounds={rounds}, round_ms={round_ms}: both are positive")
    specs = _names(links)
    cases = list(_cases(_names(metrics), specs, sizes, operations and _names(operations), _names(memory)))
    if not cases:
        raise InvalidArgumentError(
            f"nothing to measure: {metrics} of {operations}; "
            + "; ".join(f"{name} is of {', '.join(metric.operations)}" for name, metric in METRICS.items())
        )
    capacity = max(64 * KIB, *(case.size for case in cases))
    steps = (rounds + 1) * len(cases)
    cores = choose_cores()
    facts = machine_facts(cores[0])
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, steps)

    links_used: dict[str, str] = {}
    target_facts: dict[str, Any] = {}
    interrupted = False
    try:
        with pinned(cores[0]), contextlib.ExitStack() as open_sessions:
            target = _Target(peer, token, cores[1])
            sessions = {
                spec: open_sessions.enter_context(session)
                for spec, session in target.sessions(specs, capacity)
            }
            links_used = {spec: session.link for spec, session in sessions.items()}
            target_facts = sessions[specs[0]].facts
            _run(cases, sessions, rounds, round_ms, step)
    except KeyboardInterrupt:
        interrupted = True
        if not partial or not any(case.rounds for case in cases):
            raise
    rows = [case.measured(links_used[case.links]) for case in cases if case.rounds]
    return Measurements(rows, {"initiator": facts, "target": target_facts}, interrupted=interrupted)


def _run(
    cases: Sequence[_Case],
    sessions: dict[str, Session],
    rounds: int,
    round_ms: float,
    step: Callable[[], None],
) -> None:
    """Lets the cases take turns, and notes in them what they took."""
    plans = []
    for case in cases:
        plans.append((case, *_plan(sessions[case.links], case, round_ms * 1e6)))
        step()
    shuffled = random.Random(1).sample
    for _ in range(rounds):
        for case, batch, samples in shuffled(plans, len(plans)):
            session = sessions[case.links]
            taken = warm(session.run(case.statement, case.memory, case.size, batch, samples))
            case.samples += taken
            case.rounds.append(statistics.median(taken))
            step()


def _cases(
    metrics: Iterable[str],
    specs: Iterable[str],
    sizes: Sequence[int] | None,
    operations: Sequence[str] | None,
    memories: Sequence[str],
) -> Iterator[_Case]:
    sizes = sizes and list(dict.fromkeys(map(operator.index, sizes)))
    for size in sizes or ():
        if size % 8 or not 8 <= size <= LARGEST:
            raise InvalidArgumentError(f"{size} bytes: sizes are multiples of 8, at most {LARGEST}")
    for wanted, known in ((metrics, METRICS), (memories, MEMORY), (operations or (), _all_operations())):
        for name in wanted:
            if name not in known:
                raise InvalidArgumentError(f"{name!r}: choose from {', '.join(known)}")
    for name in metrics:
        metric = METRICS[name]
        for operation in operations or metric.default:
            statement = metric.operations.get(operation)
            if statement is None:
                continue
            for size in (8,) if operation in _WORD_ONLY else sizes or metric.sizes:
                for memory in ("-",) if statement in MESSAGES else memories:
                    for spec in specs:
                        yield _Case(name, operation, statement, size, memory, spec)


def _names(wanted: str | Sequence[str]) -> list[str]:
    """A list of one name or of several, without repetitions."""
    return [wanted] if isinstance(wanted, str) else list(dict.fromkeys(wanted))


def _all_operations() -> list[str]:
    return list(dict.fromkeys(name for metric in METRICS.values() for name in metric.operations))


def _plan(session: Session, case: _Case, round_ns: float) -> tuple[int, int]:
    """(batch, samples) with which a round takes `round_ns`."""
    operations = session.operations_of(case.statement, case.size)

    def sample(batch: int) -> float:
        taken = session.run(case.statement, case.memory, case.size, batch, 3)
        return statistics.median(taken) * operations * batch

    batch, sample_ns = calibrate(sample)
    return batch, samples_in(round_ns, sample_ns)
