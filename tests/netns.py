"""Machines with network cards, made of Linux namespaces: `Bench`.

A node has a network, a host name, processes, /dev/shm and /sys of its own, so nothing but its NICs leads out of it, and ranks
within it share memory as they do on one machine. NIC r<rail> of all nodes is plugged into one switch, so each rail is a subnet:
10.77.<rail>.<1 + node>. Nothing has a name outside: all of it ends with the process that made it, however that one ends.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import psutil
import pytest
from pyfab.testing import Peer

TIMEOUT = 60  # seconds that anything here may take

# Lives until its stdin closes, which is when the tests close it or end; all that runs in its namespaces ends with it.
# Ended processes that nobody waits for go by themselves.
_INIT = """
set -e
hostname "$1"
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
exec env --ignore-signal=CHLD cat
"""


def _call(*command: str, text: str = "") -> str:
    """The output of a command; RuntimeError with its words if it fails."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=_environment()
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()} {text}".strip())
    return done.stdout


def _environment(**more: str) -> dict[str, str]:
    sbin = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PYFAB_")}, "PATH": sbin, **more}


class _Namespace:
    """Namespaces that live as long as this object or process. With `parent`, made by whoever owns that one."""

    def __init__(self, host: str, parent: _Namespace | None = None) -> None:
        self.user = os.geteuid() != 0  # then all is done as the root of a user namespace
        if parent:
            command = [*parent.enter("net"), "unshare"]
        else:
            command = ["unshare", *(["--user", "--map-root-user"] if self.user else [])]
        command += ["--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*command, "sh", "-c", _INIT, "sh", host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        )
        assert self._process.stdout
        told = self._process.stdout.readline()
        if told != "ready\n":
            told += self._process.communicate(timeout=TIMEOUT)[0]
            raise RuntimeError(f"no namespace for {host}: {told.strip()}")
        (init,) = psutil.Process(self._process.pid).children()
        self.pid = init.pid

    def enter(self, *kinds: str, fork: bool = True) -> list[str]:
        """The beginning of a command that runs in these namespaces."""
        enter = ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in kinds)]
        enter += ["--user", "--preserve-credentials"] if self.user else []
        return enter if fork else [*enter, "--no-fork"]

    def call(self, *command: str, text: str = "") -> str:
        return _call(*self.enter("net"), *command, text=text)

    def close(self) -> None:
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # a forked child of this process holds the other end, too
            self._process.kill()
            self._process.communicate(timeout=TIMEOUT)


class Node:
    """One machine of a `Bench`."""

    def __init__(self, bench: Bench, index: int, host: str) -> None:
        self.index, self.host = index, host
        self._bench = bench
        self._space = _Namespace(host, bench._switch)
        self._dropped: dict[int, int] = {}
        self._longest: dict[int, int] = {}

    @property
    def interfaces(self) -> list[str]:
        return [f"r{rail}" for rail in range(self._bench.rails)]

    def address(self, rail: int = 0) -> str:
        return f"10.77.{rail}.{1 + self.index}"

    @property
    def pid(self) -> int:
        """A process that is here as long as the machine is."""
        return self._space.pid

    @property
    def network(self) -> list[str]:
        """What to put before a command that is to have the network of this node alone: it can enter other nodes."""
        return self._space.enter("net")

    @property
    def command(self) -> list[str]:
        """What to put before a command so that it runs here. It ends when the process in front is killed."""
        enter = self._space.enter("net", "pid", "mount", "uts", "ipc", fork=False)
        return [*enter, "unshare", "--fork", "--kill-child"]

    def popen(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a Python script with the modules of this process, whose errors are its own. `finish` ends its input."""
        return self._start(self.command, script, arguments, environment)

    def popen_outside(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Likewise, with the network of this node alone: such a script can enter other nodes."""
        return self._start(self.network, script, arguments, environment)

    def _start(
        self, command: list[str], script: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> subprocess.Popen[str]:
        code = f"import sys; sys.path[:] = {sys.path!r}\n{script}"
        process = subprocess.Popen(
            [*command, sys.executable, "-c", code, *arguments],
            env=_environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._bench._started.append(process)
        return process

    def run(self, script: str, *arguments: str, timeout: float = TIMEOUT, **environment: str) -> str:
        """The output of such a script; AssertionError with it if the script fails."""
        return finish(self.popen(script, *arguments, **environment), timeout)

    def peer(self, spec: str, **options: Any) -> Peer:
        """A `Peer` whose process runs here; its `pid` is that of the process in front."""
        return Peer(spec, launcher=self.command, **options)

    def call(self, *command: str, text: str = "") -> str:
        """The output of a command with the network of this node, which reads `text`."""
        return self._space.call(*command, text=text)

    # --- what can happen to a NIC

    def rate(self, rail: int, rate: str) -> None:
        """Limits both directions of a NIC, for instance to "2gbit"."""
        shape = f"root tbf rate {rate} burst 512kb latency 20ms"
        self._space.call("tc", "qdisc", "replace", "dev", f"r{rail}", *shape.split())
        self._bench._switch.call("tc", "qdisc", "replace", "dev", self._port(rail), *shape.split())

    def drop(self, rail: int, permille: int) -> None:
        """Loses arriving packets at random; 0: none any more."""
        self._dropped[rail] = permille
        self._filter()

    def drop_longer(self, rail: int, length: int) -> None:
        """Loses arriving packets of more than `length` bytes, as behind a router that tells nobody; 0: none any more."""
        self._longest[rail] = length
        self._filter()

    def _filter(self) -> None:
        rules = [
            f'iifname "r{rail}" numgen random mod 1000 <= {count - 1} drop'
            for rail, count in self._dropped.items()
            if count
        ]
        rules += [
            f'iifname "r{rail}" meta length > {length} drop'
            for rail, length in self._longest.items()
            if length
        ]
        lines = ["table inet bench", "delete table inet bench", "table inet bench {", "chain arriving {"]
        lines += ["type filter hook prerouting priority raw", *rules, "}", "}", ""]
        self._space.call("nft", "-f", "-", text="\n".join(lines))

    def link_down(self, rail: int) -> None:
        """Switches a NIC off: this node knows it, others find out."""
        self._space.call("ip", "link", "set", f"r{rail}", "down")

    def link_up(self, rail: int) -> None:
        self._space.call("ip", "link", "set", f"r{rail}", "up")

    def unplug(self, rail: int) -> None:
        """Pulls the cable: packets vanish, routes stay."""
        self._bench._switch.call("ip", "link", "set", self._port(rail), "down")

    def plug(self, rail: int) -> None:
        self._bench._switch.call("ip", "link", "set", self._port(rail), "up")

    @contextmanager
    def flapping(self, rail: int, every: float = 0.2) -> Iterator[Callable[[], int]]:
        """Pulls the cable and plugs it in again, every so many seconds. Gives what tells how often; in the end it is in."""
        over, pulled = threading.Event(), 0

        def flap() -> None:
            nonlocal pulled
            while not over.wait(every):
                self.unplug(rail)
                pulled += 1
                over.wait(every)
                self.plug(rail)

        thread = threading.Thread(target=flap)
        thread.start()
        try:
            yield lambda: pulled
        finally:
            over.set()
            thread.join()

    def counters(self, rail: int) -> tuple[int, int]:
        """Bytes that a NIC received and sent."""
        folder = f"/sys/class/net/r{rail}/statistics"
        enter = self._space.enter("net", "mount")
        received, sent = _call(*enter, "cat", f"{folder}/rx_bytes", f"{folder}/tx_bytes").split()
        return int(received), int(sent)

    def _port(self, rail: int) -> str:
        return f"n{self.index}r{rail}"


class Bench:
    """Nodes that are joined by switched rails. Skips the test, with the reason, where the system does not allow that.

    rates: of each rail's NICs, as tc(8) writes them; None: as fast as the machine. hosts: the nodes' host names.
    """

    def __init__(
        self,
        nodes: int = 2,
        rails: int = 1,
        rates: Sequence[str | None] | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        reason = unavailable()
        if reason:
            pytest.skip(f"no bench of network namespaces: {reason}")
        self._open(nodes, rails, rates or [None] * rails, hosts or [f"node{i}" for i in range(nodes)])

    def _open(self, nodes: int, rails: int, rates: Sequence[str | None], hosts: Sequence[str]) -> None:
        assert len(rates) == rails and len(hosts) == nodes
        self.rails = rails
        self._started: list[subprocess.Popen[str]] = []
        with ExitStack() as stack:
            self._switch = _Namespace("switch")
            stack.callback(self._switch.close)
            self._nodes: list[Node] = []
            for index, host in enumerate(hosts):
                self._nodes.append(Node(self, index, host))
                stack.callback(self._nodes[-1]._space.close)
            self._wire(rates)
            self._stack = stack.pop_all()

    def _wire(self, rates: Sequence[str | None]) -> None:
        lines = [f"link add rail{rail} type bridge\nlink set rail{rail} up" for rail in range(self.rails)]
        for node in self._nodes:
            for rail in range(self.rails):
                port = node._port(rail)
                lines += [
                    f"link add {port} type veth peer name r{rail} netns {node._space.pid}",
                    f"link set {port} master rail{rail} up",
                ]
        self._switch.call("ip", "-batch", "-", text="\n".join(lines))
        for node in self._nodes:
            lines = [
                f"addr add {node.address(rail)}/24 dev r{rail}\nlink set r{rail} up"
                for rail in range(self.rails)
            ]
            node._space.call("ip", "-batch", "-", text="\n".join(lines))
            for rail, rate in enumerate(rates):
                if rate:
                    node.rate(rail, rate)

    def node(self, index: int) -> Node:
        return self._nodes[index]

    def close(self) -> None:
        """Ends everything that runs in the nodes, and the nodes. Closing twice is harmless."""
        self._stack.close()
        for process in self._started:
            process.kill()
            process.communicate()
        self._started.clear()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT) -> str:
    """The output of what `Node.popen` started; AssertionError with it if the script fails or takes too long."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"still running after {timeout} s:\n{output}") from None
    assert process.returncode == 0, f"status {process.returncode}:\n{output}"
    return output


@functools.cache
def unavailable() -> str:
    """Why there can be no `Bench` here; empty if there can: tries all that it needs."""
    bench = Bench.__new__(Bench)
    try:
        bench._open(1, 1, ["1gbit"], ["probe"])
        with bench:
            bench.node(0).drop(0, 1)
    except FileNotFoundError as missing:
        return f"the command {missing.filename} is missing"
    except (RuntimeError, OSError) as error:
        return str(error)
    return ""
