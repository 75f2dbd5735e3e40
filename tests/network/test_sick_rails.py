"""Rails that are slow, lose packets or swallow large ones: their traffic moves to the other rail, and back when they are well."""

from __future__ import annotations

import contextlib
import re
import signal
import time

import numpy as np
import psutil
import pytest
from netns import TIMEOUT, Bench
from pyfab import AtomicOp

from link_log import LinkLog

LINKS = "tcp:r0,r1"
RATE = "200mbit"


def insert(target, address):
    return target.endpoint.av.insert(address)


def report(target, handle):
    return target.endpoint.report(handle)[1]


def mixed_traffic(target, handle, memory, sums, turn):
    """Small puts, large ones and atomics, and messages that nobody has asked for yet."""
    page = np.full(4096, turn % 256, np.uint8)
    operations = [target.endpoint.write(page, handle, memory[i * 4096 : (i + 1) * 4096]) for i in range(16)]
    large = np.full(memory.nbytes, turn % 256, np.uint8)
    operations.append(target.endpoint.write(large, handle, memory))
    landing = np.zeros(1, np.int64)
    for _ in range(20):
        target.endpoint.fetch_atomic(AtomicOp.SUM, np.ones(1, np.int64), landing, handle, sums).result(
            TIMEOUT
        )
    for operation in operations:
        operation.result(TIMEOUT)
    back = np.empty_like(large)
    target.endpoint.read(back, handle, memory).result(TIMEOUT)
    assert (back == large).all()
    return int(landing[0])


def send(target, handle, count):
    for number in range(count):
        target.endpoint.send(np.array([number]), handle).result(TIMEOUT)


def receive(target, count):
    landing = np.zeros(1, np.int64)
    numbers = []
    for _ in range(count):
        target.endpoint.recv(landing).result(TIMEOUT)
        numbers.append(int(landing[0]))
    return numbers, {row.link: row.receives for row in target.endpoint.link_stats()}


SICKNESSES = {
    "slow": (lambda node: node.rate(0, "1mbit"), lambda node: node.rate(0, RATE)),
    "swallows": (lambda node: node.drop_longer(0, 1200), lambda node: node.drop_longer(0, 0)),
    "loses": (lambda node: node.drop(0, 300), lambda node: node.drop(0, 0)),
}


@contextlib.contextmanager
def two_rails():
    """Two nodes with two healthy rails between them, and a peer on each."""
    with (
        Bench(nodes=2, rails=2, rates=[RATE] * 2) as bench,
        bench.node(0).peer(LINKS) as near,
        bench.node(1).peer(LINKS) as far,
    ):
        yield bench, near, far


@pytest.mark.slow
@pytest.mark.req("LNX-62", "LNX-64")
@pytest.mark.parametrize("side", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize("sickness", SICKNESSES)
def test_traffic_leaves_a_sick_rail_and_comes_back(sickness, side):
    befall, heal = SICKNESSES[sickness]
    with two_rails() as (bench, near, far):
        handle = near.run(insert, far.address)
        place, sums = far.expose(np.zeros(1 << 20, np.uint8)), far.expose(np.zeros(1, np.int64))
        remotes = place.remote, sums.remote
        turn = 0

        def run():
            nonlocal turn
            turn += 1
            assert near.run(mixed_traffic, handle, *remotes, turn) == 20 * turn - 1

        run()
        befall(bench.node(side))
        deadline = time.monotonic() + TIMEOUT
        while "tcp.0 set aside" not in near.run(report, handle):
            assert time.monotonic() < deadline, near.run(report, handle)
            run()
        near.run(send, handle, 8)
        numbers, links = far.run(receive, 8)
        assert numbers == list(range(8))
        assert links["tcp.1"] >= 7, links  # one may have been sent while the rail passed by chance
        heal(bench.node(side))
        while "set aside" in (told := near.run(report, handle)) or "joining" in told or "down" in told:
            assert time.monotonic() < deadline, told
            run()
        run()
        assert sums.content() == [20 * turn]
        assert (place.content() == turn % 256).all()


@pytest.mark.slow
@pytest.mark.req("LNX-62", "LNX-64")
def test_a_rail_that_is_cut_and_restored_every_200_ms_costs_no_operation():
    with two_rails() as (bench, near, far):
        handle = near.run(insert, far.address)
        place, sums = far.expose(np.zeros(1 << 20, np.uint8)), far.expose(np.zeros(1, np.int64))
        turn = 0
        with bench.node(1).flapping(0) as times_cut:
            while times_cut() < 10:
                turn += 1
                assert near.run(mixed_traffic, handle, place.remote, sums.remote, turn) == 20 * turn - 1
                near.run(send, handle, 1)
                assert "tcp.1 10.77.1." in near.run(report, handle)
        assert re.search(r"tcp\.0 (10\.|set aside|down|joining)", near.run(report, handle))
        assert far.run(receive, turn)[0] == [0] * turn
        assert sums.content() == [20 * turn]
        assert (place.content() == turn % 256).all()


@pytest.mark.slow
@pytest.mark.parametrize("absence, rail", [("down", 0), ("down", 1), ("no address", 1)])
def test_a_named_port_that_is_absent_at_the_start_is_a_rail_that_is_down(absence, rail):
    with Bench(nodes=2, rails=2) as bench:
        node = bench.node(0)
        if absence == "down":
            node.link_down(rail)
        else:
            node.call("ip", "address", "flush", "dev", f"r{rail}")
        with node.peer(LINKS) as near, bench.node(1).peer(LINKS) as far:
            near.run(start_link_log)
            ways = [(near, near.run(insert, far.address)), (far, far.run(insert, near.address))]
            places = [peer.expose(np.zeros(1 << 20, np.uint8)) for peer in (far, near)]

            def put_all(value):
                content = np.full(1 << 20, value, np.uint8)
                for (peer, handle), place in zip(ways, places, strict=True):
                    peer.run(put, handle, place.remote, content)
                    assert (place.content() == value).all()

            put_all(1)
            for peer, handle in ways:
                told = peer.run(report, handle)
                assert f"tcp.{rail} " in told and f"tcp.{rail} 10." not in told
            (line,) = near.run(link_lines)
            assert line.startswith(
                f"WARNING pyfab: peer 0 is reached over tcp.{1 - rail}, and not over tcp.{rail} ("
            )
            if absence == "down":
                node.link_up(rail)
            else:
                node.call("ip", "address", "add", f"{node.address(rail)}/24", "dev", f"r{rail}")
            deadline = time.monotonic() + TIMEOUT
            while not all(f"tcp.{rail} 10.77.{rail}." in peer.run(report, handle) for peer, handle in ways):
                assert time.monotonic() < deadline, [peer.run(report, handle) for peer, handle in ways]
                put_all(2)


def start_link_log(target):
    target.log = LinkLog()


def link_lines(target):
    return target.log.wait_for(1)


def put(target, handle, remote, content):
    target.endpoint.write(content, handle, remote).result(TIMEOUT)


def put_and_report(target, handle, remote, content):
    """The outcome of a put that begins while no rail is up, which is told before."""
    target.endpoint.write(content, handle, remote)
    while any(f"tcp.{rail} 10." in report(target, handle) for rail in range(2)):
        time.sleep(0.01)
    target.tell("no rail")
    target.endpoint.write(content, handle, remote).result(TIMEOUT)


@pytest.mark.slow
def test_a_process_that_was_stopped_blames_no_peer_for_it():
    with (
        Bench(nodes=2, rails=2) as bench,
        bench.node(0).peer(LINKS, peer_deadline=4.0, rail_deadline=1.0) as near,
        bench.node(1).peer(LINKS, peer_deadline=60.0, rail_deadline=1.0) as far,
    ):
        handle = near.run(insert, far.address)
        place = far.expose(np.zeros(4096, np.uint8))
        near.run(put, handle, place.remote, np.full(4096, 1, np.uint8))
        for rail in range(2):
            bench.node(1).unplug(rail)
        near.start(put_and_report, handle, place.remote, np.full(4096, 2, np.uint8))
        assert near.finish() == "no rail"
        process = psutil.Process(near.pid).children(recursive=True)[-1]
        process.send_signal(signal.SIGSTOP)
        for rail in range(2):
            bench.node(1).plug(rail)
        time.sleep(6)  # longer than the deadline: the peer has answered the call meanwhile
        process.send_signal(signal.SIGCONT)
        near.finish()
        assert (place.content() == 2).all()
