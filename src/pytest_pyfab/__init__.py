"""The pytest plugin of pyfab: options ``--pyfab-…`` and the fixtures `fabric`, `domain`, `endpoint`, `peer`, `window`.

This is a package of its own, so that a run of pytest that has nothing to do with pyfab does not load pyfab: that is imported when
an option or a fixture is used. docs/validation.md is the guide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyfab
    from pyfab.testing import Fabric, PairedWindow, Peer
    from pyfab.testing._session import Session

_SESSION = pytest.StashKey["Session"]()
RECORD = "pyfab_"  # begins the names of JUnit properties that `pyfab_record` notes


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; `pyfab validate` has the same without the prefix."""
    group = parser.getgroup("pyfab", "pyfab: links and peers to test")
    group.addoption(
        "--pyfab-links",
        action="append",
        metavar="SPEC",
        help="links to test, as for pyfab.Domain; several times: one after the other"
        " (default: $FI_LNX_PROV_LINKS, else shm+tcp)",
    )
    group.addoption(
        "--pyfab-peer",
        action="append",
        metavar="WHERE",
        help="where the other side runs: process (default) or thread, HOST[:PORT] of a `pyfab agent`,"
        " or ssh://[USER@]HOST[:PORT] to start one; several times: one after the other",
    )
    group.addoption(
        "--pyfab-peer-links", metavar="SPEC", help="the peer's links, if they are called otherwise there"
    )
    group.addoption("--pyfab-token", metavar="TOKEN", help="the agents' token (default: $PYFAB_TOKEN)")
    group.addoption(
        "--pyfab-launch",
        metavar="COMMAND",
        help="starts the agent on {host}, for example 'ssh {host} /opt/venv/bin/pyfab {agent}'",
    )
    group.addoption(
        "--pyfab-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of all domains, for example peer_deadline=5",
    )
    group.addoption("--pyfab-json", metavar="FILE", help="write a report as JSON")
    group.addoption("--pyfab-html", metavar="FILE", help="write a report as one HTML page with plots")
    group.addoption("--pyfab-summary", action="store_true", help="show a table of the links in the end")
    group.addoption(
        "--pyfab-soak", type=float, default=0.0, metavar="SECONDS", help="validation suite: soak so long"
    )
    group.addoption(
        "--pyfab-expect",
        metavar="FILE.toml",
        help="validation suite: what latencies and bandwidths are expected",
    )
    group.addoption(
        "--pyfab-drills", default="", metavar="LIST", help="validation suite: kill,stop,resume,link or all"
    )
    group.addoption("--pyfab-link-down", metavar="COMMAND", help="takes a link down, for the drill `link`")
    group.addoption("--pyfab-link-up", metavar="COMMAND", help="brings it up again")


def pytest_configure(config: pytest.Config) -> None:
    """Checks the options, if there are any, and registers the reports that are asked for."""
    if any(
        config.getoption(f"pyfab_{name}") for name in ("links", "peer", "set", "soak", "expect", "drills")
    ):
        session_of(config)
    if any(config.getoption(f"pyfab_{name}") for name in ("json", "html", "summary")):
        from pyfab.testing._report import Reporter

        config.pluginmanager.register(Reporter(config, session_of), "pyfab_report")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the agents that were started."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses the fixtures runs once for each combination of links and peers, if there are several."""
    if "_pyfab_way" in metafunc.fixturenames:
        ways = session_of(metafunc.config).ways
        if len(ways) > 1:
            metafunc.parametrize("_pyfab_way", ways, ids=map(str, ways), indirect=True, scope="session")


def session_of(config: pytest.Config) -> Session:
    """The session that the options ask for, made once for a run."""
    if _SESSION not in config.stash:
        from pyfab.testing._session import Session

        config.stash[_SESSION] = Session(config)
    return config.stash[_SESSION]


@contextmanager
def _in_words() -> Iterator[None]:
    """Reports what keeps a fixture from working, without a traceback through the library."""
    try:
        yield
    except OSError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture(scope="session")
def _pyfab_way(request: pytest.FixtureRequest) -> Any:
    return getattr(request, "param", None) or session_of(request.config).ways[0]


@pytest.fixture(scope="session")
def fabric(request: pytest.FixtureRequest, _pyfab_way: Any) -> Iterator[Fabric]:
    """The links to test and where the peer runs; opens further domains and peers (`pyfab.testing.Fabric`)."""
    with ExitStack() as stack:
        with _in_words():
            fabric = stack.enter_context(session_of(request.config).open(_pyfab_way))
        yield fabric


@pytest.fixture(scope="session")
def domain(fabric: Fabric) -> pyfab.Domain:
    """This process's `pyfab.Domain`, one for all tests."""
    with _in_words():
        return fabric.domain


@pytest.fixture
def endpoint(fabric: Fabric) -> Iterator[pyfab.Endpoint]:
    """The domain's `pyfab.Endpoint`, which knows the peer. Its completion queue is emptied after each test."""
    with _in_words():
        endpoint = fabric.endpoint
    yield endpoint
    while endpoint.cq.read(max=1024):
        pass


@pytest.fixture
def peer(request: pytest.FixtureRequest, fabric: Fabric) -> Iterator[Peer]:
    """The other side (`pyfab.testing.Peer`), ``peer.handle`` for the endpoint. What it exposes in a test is closed after it."""
    with _in_words():
        peer = fabric.peer()
    yield peer
    if peer.over:
        return
    if peer.busy:  # its next answer would be taken for that of the next call
        peer.abandon()
        if request.session.exitstatus != pytest.ExitCode.INTERRUPTED:
            pytest.fail(
                "the test left the peer in the middle of a call: peer.finish() waits for its end", False
            )
        return
    try:
        peer.tidy()
    except BaseException:  # the peer may be stopped: the next test gets another one
        peer.abandon()
        raise


@pytest.fixture
def window(fabric: Fabric) -> Iterator[Callable[..., PairedWindow]]:
    """``window(array)`` or ``window(shape=…, dtype=…)``: a window that the peer shares, open until the end of the test."""
    opened: list[PairedWindow] = []

    def open_window(array: Any = None, *, shape: Any = None, dtype: Any = float) -> PairedWindow:
        opened.append(fabric.window(array, shape=shape, dtype=dtype))
        return opened[-1]

    yield open_window
    for paired in reversed(opened):
        paired.close()


@pytest.fixture
def pyfab_record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``pyfab_record(kind, name=value, …)`` notes what a test has found, for the reports. JSON must be able to hold them."""

    def record(kind: str, **values: Any) -> None:
        request.node.user_properties.append((RECORD + kind, json.dumps(values)))

    return record
