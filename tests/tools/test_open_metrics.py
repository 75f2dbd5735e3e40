"""What `pyfab.metrics` tells, and who may read it over HTTP."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab.data import ShardedStore
from pyfab.tools import metrics_server

LINE = re.compile(
    r'([a-z0-9_]+)\{([a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*)\} ([0-9.e+-]+)'
)


def parsed(text: str) -> dict[str, float]:
    """The samples by name and labels; AssertionError for what is no OpenMetrics text."""
    assert text.endswith("# EOF\n")
    found: dict[str, float] = {}
    family, kind = "", ""
    families = set()
    for line in text.splitlines()[:-1]:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert family not in families, "a family stands in one piece"
            families.add(family)
        elif line.startswith("# HELP "):
            assert line.split()[2] == family
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == family + ("_total" if kind == "counter" else "")
            assert f"{match[1]}{{{match[2]}}}" not in found, "no sample is told twice"
            found[f"{match[1]}{{{match[2]}}}"] = float(match[3])
    return found


def told(name: str, **labels: str) -> float:
    samples = parsed(pyfab.metrics())
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for sample, value in samples.items()
        if sample.startswith(name + "{") and all(each in sample for each in wanted)
    )


@pytest.fixture
def domain() -> Iterator[pyfab.Domain]:
    with pyfab.Domain("shm+tcp") as opened:
        yield opened


def test_it_counts_what_domains_do(domain):
    number = {"domain": str(domain._number)}
    with domain.endpoint() as first, domain.endpoint() as second:
        region = domain.register(np.zeros(100), pyfab.Access.ALL)
        for endpoint in (first, second):
            peer = endpoint.av.insert(endpoint.address)
            endpoint.put(np.ones(100), peer, region.remote)
            endpoint.get(np.ones(50), peer, region.remote[:50])
        waiting = first.recv(np.zeros(1), 0)
        first.send(np.ones(1), 0).result(10)
        waiting.result(10)
        first.send(np.ones(1), 0).result(10)
        first.peek()
        assert told("pyfab_regions", **number) == 1
        assert told("pyfab_region_bytes", **number) == 800
        assert told("pyfab_sent_bytes_total", **number, link="shm.0") >= 1600
        assert told("pyfab_received_bytes_total", **number, link="shm.0") >= 800
        assert told("pyfab_transfer_errors_total", **number) == 0
        assert told("pyfab_messages_sent_total", **number, endpoint=str(first._number)) == 2
        assert told("pyfab_messages_waiting", **number, endpoint=str(first._number)) == 1
        with pytest.raises(pyfab.FabricError):
            first.put(np.ones(1), 0, (0, 12345))
        assert told("pyfab_transfer_errors_total", **number) == 1
        region.close()
    domain.close()
    assert told("pyfab_regions", **number) == 0


def test_it_counts_what_stores_read():
    with pyfab.Group(0, 1, domain="shm") as group:
        before = told("pyfab_data_samples_total")
        with (
            ShardedStore(group, {"x": np.arange(10)}) as one,
            ShardedStore(group, {"x": np.arange(10)}) as two,
        ):
            one.gather([1, 2, 3])
            two.gather([4])
            assert told("pyfab_data_samples_total") == before + 4
            assert told("pyfab_data_batches_total", rank="0") >= 2


def test_who_asks_nothing_or_goes_costs_nothing(monkeypatch, capfd):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.2)
    with pyfab.serve_metrics() as server:
        before = threading.active_count()
        silent = [socket.create_connection(server._server.server_address, 10) for _ in range(20)]
        gone = socket.create_connection(server._server.server_address, 10)
        gone.sendall(b"GET /met")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        for each in silent:
            with each:
                assert each.recv(1) == b""  # they were told to go
        until = time.monotonic() + 20
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() <= before
    assert not capfd.readouterr().err


def test_it_is_served_on_loopback_alone(domain):
    with pyfab.serve_metrics() as server:
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
            assert any(f'domain="{domain._number}"' in sample for sample in parsed(answer.read().decode()))
        for refused, code in (
            (urllib.request.Request(server.url, headers={"Host": "page.example"}), 403),
            (urllib.request.Request(server.url.replace("/metrics", "/")), 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(refused, timeout=10)
            raised.value.close()
            assert raised.value.code == code
        assert server._server.server_address[0] == "127.0.0.1"
    server.close()
    assert "closed" in repr(server)
