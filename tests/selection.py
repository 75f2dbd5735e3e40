"""Which tests a plain `pytest` runs: each one once, over one of its links, and none that is slow. `--all` runs the whole matrix.

Links are dealt out by the names of the tests: a run is like the one before it, and every link has its share. What is asked
for by name, as `file.py::test`, or by `-m`, is not thinned out in that respect.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import pytest

# Parameters that say how the bytes go, and where the other side is.
WAYS = frozenset(
    {"alloc", "combination", "crew", "link", "links", "pair", "settings", "sides", "spec", "way"}
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, another one in each process
WAYS_OF_FILE = 3  # ways that the tests of one file are dealt out over, because each of them has to be opened


@dataclass(frozen=True)
class Case:
    """One run of a test: where it stands, what it is without its way, and the way."""

    file: str
    test: Hashable
    way: Hashable


def _shuffled(*text: object) -> int:
    """A number that depends on the text alone, in all processes and on all machines."""
    return zlib.crc32(repr(text).encode())


def chosen(cases: Iterable[Case]) -> set[Case]:
    """One of the cases of each test."""
    ways: dict[tuple[str, Hashable], list[Hashable]] = defaultdict(list)
    for case in cases:
        ways[case.file, case.test].append(case.way)

    def one(file: str, test: Hashable, of: list[Hashable]) -> Case:
        few = sorted(of, key=lambda way: _shuffled(file, way))[:WAYS_OF_FILE]
        return Case(file, test, few[_shuffled(file, test) % len(few)])

    return {one(file, test, of) for (file, test), of in ways.items()}


def cases_of(items: Iterable[pytest.Item]) -> list[Case]:
    """What each of the items is, in their order."""
    seen: Counter[Case] = Counter()
    cases = []
    for item in items:
        file, _, name = item.nodeid.partition("::")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        texts = {key: ADDRESS.sub("", repr(value)) for key, value in sorted(parameters.items())}
        way = tuple(text for key, text in texts.items() if key in WAYS)
        rest = (text for key, text in texts.items() if key not in WAYS)
        case = Case(file, (name.partition("[")[0], *rest), way)
        seen[case] += 1  # different parameters with one text
        cases.append(replace(case, test=(case.test, seen[case])))
    return cases


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "every test over every link, in threads and in processes, and the slow ones too"
    parser.addoption("--all", action="store_true", dest="whole_matrix", help=text)
    text = "what a plain run leaves out of the whole matrix"
    parser.addoption("--rest", action="store_true", dest="rest_of_matrix", help=text)


def thins_out(config: pytest.Config) -> bool:
    return not config.getoption("whole_matrix") and not any("::" in argument for argument in config.args)


@pytest.hookimpl(trylast=True)  # of what -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not thins_out(config):
        return
    asked_for_slow = bool(config.getoption("markexpr"))
    cases = cases_of(items)
    keep = chosen(cases)
    taken = [
        case in keep and (asked_for_slow or is_fast(item)) for case, item in zip(cases, items, strict=True)
    ]
    plain = [item for item, is_taken in zip(items, taken, strict=True) if is_taken]
    rest = [item for item, is_taken in zip(items, taken, strict=True) if not is_taken]
    items[:], left = (rest, plain) if config.getoption("rest_of_matrix") else (plain, rest)
    if left:
        config.hook.pytest_deselected(items=left)


def is_fast(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if thins_out(config) and not config.getoption("rest_of_matrix"):
        terminalreporter.line(
            "Each test ran over one of its links; pytest --all runs the others, and the slow tests."
        )
