"""What the plugin's options ask for: ways to test, and the agents that have to be started for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import pytest
from pyfab.testing._expect import Expectation, load
from pyfab.testing._fabric import Fabric
from pyfab.testing._facts import facts
from pyfab.testing._remote import RemoteAgent
from pyfab.testing.agent import DEFAULT_PORT
from pyfab.testing.launch import launched

DRILLS = ("kill", "stop", "resume", "link")


class Way(NamedTuple):
    """Links and a peer, both as the options name them."""

    links: str
    peer: str

    def __str__(self) -> str:
        return f"{self.links} to {self.peer}"


class Session:
    """One run of pytest. pytest.UsageError for options that mean nothing."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        links = option("pyfab_links") or [os.environ.get("FI_LNX_PROV_LINKS") or "shm+tcp"]
        peers = option("pyfab_peer") or ["process"]
        self.ways = [Way(*way) for way in product(links, peers)]
        self._peer_links: str | None = option("pyfab_peer_links")
        self._token: str | None = option("pyfab_token")
        self._launch: str | None = option("pyfab_launch")
        self._settings = dict(_setting(text) for text in option("pyfab_set"))
        self.soak: float = option("pyfab_soak")
        self.expectations = _expectations(option("pyfab_expect"))
        self.drills = _drills(option("pyfab_drills"))
        self.link_down: str | None = option("pyfab_link_down")
        self.link_up: str | None = option("pyfab_link_up")
        if "link" in option("pyfab_drills").split(",") and not (self.link_down and self.link_up):
            raise pytest.UsageError(
                "--pyfab-drills link: give --pyfab-link-down and --pyfab-link-up, commands"
            )
        for peer in {*peers} - {"thread", "process"}:
            _parsed(peer)
        self._places: dict[str, Literal["thread", "process"] | RemoteAgent] = {}
        self._resources = ExitStack()
        self.facts: dict[str, dict[str, Any]] = {}  # facts of the hosts, by what the options call these
        self.links: list[dict[str, Any]] = []  # how each peer was reached

    def check(self) -> None:
        """Opens once all that the options name, so that what is missing is known before any test. OSError for that."""
        for way in self.ways:
            with self._fabric(way) as fabric:
                fabric.peer()
            self._note_facts(way.peer)

    @contextmanager
    def open(self, way: Way) -> Iterator[Fabric]:
        """The fabric of a way; how it is reached is noted at the end."""
        with self._fabric(way) as fabric:
            self._note_facts(way.peer)
            yield fabric
            if report := fabric.report():
                self.links.append({**way._asdict(), **dict(zip(("link", "how", "why"), report, strict=True))})

    def close(self) -> None:
        """Ends the agents that were started."""
        self._resources.close()

    def _fabric(self, way: Way) -> Fabric:
        return Fabric(way.links, self._place(way.peer), peer_links=self._peer_links, **self._settings)

    def _note_facts(self, peer: str) -> None:
        where = self._place(peer)
        if "here" not in self.facts:
            self.facts["here"] = facts()
        if isinstance(where, RemoteAgent) and peer not in self.facts:
            self.facts[peer] = where.facts()

    def _place(self, text: str) -> Literal["thread", "process"] | RemoteAgent:
        if text not in self._places:
            self._places[text] = self._resolve(text)
        return self._places[text]

    def _resolve(self, text: str) -> Literal["thread", "process"] | RemoteAgent:
        if text == "thread":
            return "thread"
        if text == "process":
            return "process"
        user, host, port = _parsed(text)
        if "://" in text:
            command = self._launch or (f"ssh -p {port} {{host}}" if port else "ssh {host}")
            return self._resources.enter_context(launched(command, f"{user}{host}", host))
        if self._launch:
            return self._resources.enter_context(launched(self._launch, host, host))
        return RemoteAgent(host, port or DEFAULT_PORT, self._token)


def _parsed(text: str) -> tuple[str, str, int | None]:
    """User (with its @), host and port of HOST[:PORT] or ssh://[USER@]HOST[:PORT]."""
    try:
        url = urlsplit(text if "://" in text else f"agent://{text}")
        if url.scheme in ("ssh", "agent") and url.hostname and not (url.path or url.query):
            return f"{url.username}@" if url.username else "", url.hostname, url.port
    except ValueError:  # the port is no number
        pass
    raise pytest.UsageError(
        f"--pyfab-peer {text}: write process, thread, HOST[:PORT] or ssh://[USER@]HOST[:PORT]"
    )


def _expectations(file: str | None) -> list[Expectation]:
    try:
        return load(Path(file)) if file else []
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--pyfab-expect: {error}") from None


def _drills(text: str) -> set[str]:
    chosen = {name for name in text.split(",") if name}
    if unknown := chosen - {*DRILLS, "all"}:
        raise pytest.UsageError(
            f"--pyfab-drills {','.join(sorted(unknown))}: there are {', '.join(DRILLS)}, and all"
        )
    return set(DRILLS) if "all" in chosen else chosen


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise pytest.UsageError(f"--pyfab-set {text}: write NAME=VALUE, for example peer_deadline=5")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            pass
    return name, {"true": True, "false": False}.get(value.lower(), value)
