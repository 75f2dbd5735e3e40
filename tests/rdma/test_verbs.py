"""What only devices do: without the target's CPU, refused by the hardware, lost with a process.

`scripts/guest-tests` runs it in a guest, `PYFAB_TEST_LINKS=verbs:mlx5_0 pytest tests/rdma` on a machine with such a device.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer

DEVICES = [spec for spec in os.environ.get("PYFAB_TEST_LINKS", "").split() if spec.startswith("verbs:")]
pytestmark = pytest.mark.skipif(
    not DEVICES, reason="asked for by PYFAB_TEST_LINKS=verbs:DEVICE (tests/rdma/README.md)"
)
DEVICE = DEVICES[0] if DEVICES else ""
MOCK = DEVICE == "verbs:mock0"  # a thread of each process: scripts/mock-verbs-tests
TIMEOUT = 60
LEAKED = 4096  # KiB: by how much memory in use may differ without a leak
SIZE = 64 * 1024  # bytes: large enough for devices to move them at the first use of a region


@pytest.fixture
def here():
    with pyfab.Domain(DEVICE, peer_deadline=5) as domain, domain.endpoint() as endpoint:
        yield endpoint


def known(endpoint, peer, content=None, access=pyfab.Access.REMOTE):
    handle = endpoint.av.insert(peer.address)
    exposed = peer.expose(np.zeros(SIZE, np.uint8) if content is None else content, access)
    return handle, exposed


def native(device):
    """Whether the device of the target may move bytes by itself: iWARP puts and its atomics need the CPU."""
    return "iwarp" not in pyfab.getinfo(device)[0].fabric


@pytest.mark.skipif(MOCK, reason="the mock device stops with its process")
def test_a_stopped_target_serves_by_its_device(here):
    if not native(DEVICE):
        pytest.skip("over iWARP puts and atomics need the target's CPU")
    with Peer(DEVICE) as peer:
        handle, exposed = known(here, peer)
        words = peer.expose(np.zeros(4, np.int64))
        data = np.arange(SIZE // 8).view(np.uint8)
        here.write(data, handle, exposed.remote).result(TIMEOUT)
        here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote[:1]).result(TIMEOUT)
        peer.suspend()
        try:
            for turn in range(1, 20):
                here.write(data + turn, handle, exposed.remote).result(TIMEOUT)
                back = np.zeros(SIZE, np.uint8)
                here.read(back, handle, exposed.remote).result(TIMEOUT)
                assert (back == data + turn).all()
                old = np.zeros(1, np.int64)
                here.fetch_atomic(AtomicOp.SUM, np.ones(1, np.int64), old, handle, words.remote[:1]).result(
                    TIMEOUT
                )
                assert old[0] == turn
        finally:
            peer.resume()
        assert words.content()[0] == 20


def test_a_region_that_closes_is_refused_and_the_rest_goes_on(here):
    with Peer(DEVICE) as peer:
        handle, first = known(here, peer)
        second = peer.expose(np.zeros(SIZE, np.uint8))
        data = np.full(SIZE, 7, np.uint8)
        for turn in range(5):
            here.write(data, handle, first.remote).result(TIMEOUT)
            here.write(data, handle, second.remote).result(TIMEOUT)
            remote = first.remote
            first.close()
            # The device knows the old key no more; what was sent with it is judged in words, the others are repeated.
            crowd = [here.write(data, handle, remote if i % 3 == 1 else second.remote) for i in range(30)]
            for i, operation in enumerate(crowd):
                if i % 3 == 1:
                    with pytest.raises(pyfab.KeyRejectedError):
                        operation.result(TIMEOUT)
                else:
                    operation.result(TIMEOUT)
            first = peer.expose(np.zeros(SIZE, np.uint8))
            assert (second.content() == 7).all(), turn
        # Each is counted once, whoever did it and however often it was tried.
        counts = here.counts(handle)
        assert (counts["posted"], counts["settled"], counts["errors"]) == (5 * 32, 5 * 32, 5 * 10)
        assert counts["bytes_out"] == 5 * 22 * SIZE


def adds(endpoint, handle, remote, dtype, count):
    one = np.ones(1, dtype)
    for _ in range(count):
        endpoint.atomic(AtomicOp.SUM, one, handle, remote).result(TIMEOUT)


def test_updates_by_devices_and_by_the_cpu_lose_nothing():
    """One kind of update begins by the devices; another kind comes in between, and takes the region to the CPU."""
    rounds = int(os.environ.get("FAB_ROUNDS", 20))
    with Peer(DEVICE) as peer, pyfab.Domain(DEVICE) as domain:
        for turn in range(3):
            words = peer.expose(np.zeros(2, np.int64))
            ends = [domain.endpoint() for _ in range(3)]
            handles = [end.av.insert(peer.address) for end in ends]
            # Both kinds on one word: the lower half of it, to which 32 bits are added, does not overflow.
            half = words.remote.bytes(0, 4).view(np.int32, (1,))
            threads = [
                threading.Thread(target=adds, args=(end, handle, remote, dtype, rounds))
                for end, handle, remote, dtype in zip(
                    ends,
                    handles,
                    [words.remote[:1], words.remote[:1], half],
                    [np.int64, np.int64, np.int32],
                    strict=True,
                )
            ]
            for thread in threads[:2]:
                thread.start()
            if turn:
                adds(ends[2], handles[2], words.remote[:1], np.int64, turn)
            threads[2].start()
            for thread in threads:
                thread.join(TIMEOUT)
            assert words.content()[0] == 3 * rounds + turn
            for end in ends:
                end.close()


def test_what_goes_different_ways_settles_in_order(here):
    """Updates that devices cannot do go as messages, between puts and gets that go by the devices."""
    with Peer(DEVICE) as peer:
        handle, exposed = known(here, peer)
        words = peer.expose(np.zeros(1, np.int32))
        data, back, one = np.ones(SIZE, np.uint8), np.zeros(SIZE, np.uint8), np.ones(1, np.int32)
        here.write(data, handle, exposed.remote).result(TIMEOUT)  # makes the region known to the device
        count, order = 300, []
        here.cq.read(max=10)
        for number in range(count):
            if number % 3 == 0:
                here.atomic(AtomicOp.SUM, one, handle, words.remote, context=number)
            elif number % 3 == 1:
                here.write(data[:1024], handle, exposed.remote[:1024], context=number)
            else:
                here.read(back[:1024], handle, exposed.remote[:1024], context=number)
        end = time.monotonic() + TIMEOUT
        while len(order) < count:
            assert time.monotonic() < end
            order += [entry.context for entry in here.cq.read(max=count)]
        assert order == list(range(count))
        assert words.content()[0] == count // 3


def test_little_gets_over_page_boundaries(here):
    """Where a device would mix up the pages they are cut."""
    content = np.random.default_rng(5).integers(0, 256, SIZE, np.uint8)
    with Peer(DEVICE) as peer:
        handle, exposed = known(here, peer, content)
        here.read(np.zeros_like(content), handle, exposed.remote).result(TIMEOUT)  # makes the region known
        wrong = []
        for before in (3, 8):
            for length in (9, 12, 24, 60, 100, 4000):
                # Memory is aligned to 16 bytes: one of these begins `before` bytes in front of a page.
                starts = range(4096 - before, 8192, 16)
                back = np.zeros((len(starts), length), np.uint8)
                for row, at in zip(back, starts, strict=True):
                    here.read(row, handle, exposed.remote[at : at + length])
                here.flush(handle, TIMEOUT)
                expected = np.stack([content[at : at + length] for at in starts])
                wrong += [(before, length)] if (back != expected).any() else []
        assert not wrong, "bytes before the boundary, length"


def test_many_connections_to_one_peer_stand_at_once():
    with Peer(DEVICE) as peer, pyfab.Domain(DEVICE) as domain:
        rows = peer.expose(np.zeros((12, 64), np.int64))
        ends = [domain.endpoint() for _ in range(12)]
        for turn in (1, 2):
            for number, end in enumerate(ends):
                handle = end.av.insert(peer.address)
                end.write(np.full(64, turn + number), handle, rows.remote[number]).result(TIMEOUT)
        assert (rows.content() == 2 + np.arange(12)[:, None]).all()


def test_a_killed_peer_is_lost_and_another_one_is_not(here):
    with Peer(DEVICE) as healthy:
        handle, exposed = known(here, healthy)
        victim = Peer(DEVICE)
        lost, gone = known(here, victim)
        data = np.ones(SIZE, np.uint8)
        here.write(data, lost, gone.remote).result(TIMEOUT)
        here.write(data, handle, exposed.remote).result(TIMEOUT)
        operations = [here.write(data, lost, gone.remote) for _ in range(10)]
        victim.kill()
        with pytest.raises(pyfab.FabricError):
            here.write(data, lost, gone.remote).result(TIMEOUT)
        for operation in operations:  # each has an outcome
            operation.exception(TIMEOUT)
        here.write(data + 1, handle, exposed.remote).result(TIMEOUT)
        assert (exposed.content() == 2).all()


def facts():
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "pinned": int(status.split("VmPin:")[1].split()[0]),
        "threads": int(status.split("Threads:")[1].split()[0]),
        "resident": int(status.split("VmRSS:")[1].split()[0]) // LEAKED,
    }


def objects():
    """What the kernel holds of the device's for all processes."""
    told = subprocess.run(["rdma", "-j", "resource", "show"], check=True, capture_output=True, text=True)
    (found,) = (device for device in json.loads(told.stdout) if device["ifname"] == DEVICE.split(":")[1])
    return {name: found[name] for name in ("pd", "cq", "qp", "mr", "cm_id")}


def lives(target_address, remote, count):
    """`count` connections, ten from each domain."""
    data = np.ones(SIZE, np.uint8)
    for first in range(0, count, 10):
        with pyfab.Domain(DEVICE) as domain:
            for _ in range(first, min(first + 10, count)):
                with domain.endpoint() as endpoint:
                    handle = endpoint.av.insert(target_address)
                    endpoint.write(data, handle, remote).result(TIMEOUT)
                    endpoint.write(data[:8], handle, remote[:8]).result(TIMEOUT)
    gc.collect()


def facts_there(_target):
    gc.collect()
    return facts()


@pytest.mark.skipif(MOCK, reason="the kernel does not know the mock device; test_mock_faults.py asks it")
def test_connections_leave_nothing_behind():
    rounds = int(os.environ.get("FAB_ROUNDS", 20))
    with Peer(DEVICE) as peer:
        exposed = peer.expose(np.zeros(SIZE, np.uint8))
        lives(peer.address, exposed.remote, 5)
        before, before_there, known = facts(), peer.run(facts_there), objects()
        lives(peer.address, exposed.remote, rounds)
        # The target learns of the last end by an event.
        for _ in range(200):
            there, left = peer.run(facts_there), objects()
            if left == known and all(there[name] <= before_there[name] + 2 for name in there):
                break
        else:
            assert (there, left) == (before_there, known)
        after = facts()
        assert all(after[name] <= before[name] + 2 for name in after), (before, after)


def test_a_key_is_needed_and_proven():
    with Peer(DEVICE, auth_key=b"secret") as peer:
        exposed = peer.expose(np.zeros(SIZE, np.uint8))
        data = np.ones(SIZE, np.uint8)
        with pyfab.Domain(DEVICE, auth_key=b"secret") as domain, domain.endpoint() as endpoint:
            handle = endpoint.av.insert(peer.address)
            endpoint.write(data, handle, exposed.remote).result(TIMEOUT)
            assert (exposed.content() == 1).all()
        for key in ({}, {"auth_key": b"other"}):
            with pyfab.Domain(DEVICE, **key) as domain, domain.endpoint() as endpoint:
                handle = endpoint.av.insert(peer.address)
                with pytest.raises(pyfab.FabricError):
                    endpoint.write(data + 1, handle, exposed.remote).result(TIMEOUT)
        assert (exposed.content() == 1).all()


def test_relaxed_ordering_is_for_who_asks():
    """Devices that do not know it ignore it; what is complete is there all the same."""
    with (
        Peer(DEVICE, verbs_relaxed_ordering="on") as peer,
        pyfab.Domain(DEVICE, verbs_relaxed_ordering="on") as domain,
        domain.endpoint() as endpoint,
    ):
        handle, exposed = known(endpoint, peer)
        data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
        endpoint.write(data, handle, exposed.remote).result(TIMEOUT)
        assert (exposed.content() == data).all()
        back = np.zeros_like(data)
        endpoint.read(back, handle, exposed.remote).result(TIMEOUT)
        assert (back == data).all()
    with pytest.raises(pyfab.InvalidArgumentError, match="it must be auto, on or off"):
        pyfab.Domain(DEVICE, verbs_relaxed_ordering="yes")


def test_on_demand_paging_is_for_who_asks():
    """Memory that is neither pinned nor limited; and a device that cannot do that is named."""
    refused = ""
    try:
        domain = pyfab.Domain(DEVICE, verbs_odp="on")
    except pyfab.NotSupportedError as error:
        refused = str(error)
    if refused:
        assert DEVICE.removeprefix("verbs:") in refused and "on-demand paging" in refused
        return
    with domain, domain.endpoint() as endpoint, Peer(DEVICE, verbs_odp="on") as peer:
        handle, exposed = known(endpoint, peer)
        endpoint.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        assert exposed.content().all()


def add_32_bits(peer, address, remote, count):
    """By messages: devices have no such update."""
    handle = peer.endpoint.av.insert(address)
    adds(peer.endpoint, handle, remote, np.int32, count)


def test_peers_share_receives():
    """More peers than the shared queue has slots for at once; one is killed, and nothing of the others is lost."""
    if not native(DEVICE):
        with pytest.raises(pyfab.NotSupportedError, match="a message for which no slot is free"):
            pyfab.Domain(DEVICE, verbs_srq=16)
        return
    rounds = int(os.environ.get("FAB_ROUNDS", 20))
    words = np.zeros(3, np.int32)
    with contextlib.ExitStack() as stack:
        domain = stack.enter_context(pyfab.Domain(DEVICE, verbs_srq=16, peer_deadline=5))
        here = stack.enter_context(domain.endpoint())
        region = stack.enter_context(domain.register(words, pyfab.Access.REMOTE))
        remotes = [region.remote[i : i + 1] for i in range(3)]
        victim, *others = [stack.enter_context(Peer(DEVICE, verbs_srq=32)) for _ in range(3)]
        victim.start(add_32_bits, here.address, remotes[0], 1 << 30)
        for peer, remote in zip(others, remotes[1:], strict=True):
            peer.start(add_32_bits, here.address, remote, rounds)
        end = time.monotonic() + TIMEOUT
        while words[0] < 3:
            assert time.monotonic() < end
            time.sleep(0.001)
        victim.kill()
        for peer in others:
            peer.finish(TIMEOUT)
            handle, exposed = known(here, peer, np.zeros(1000, np.int32))
            added = [
                here.atomic(AtomicOp.SUM, np.ones(1000, np.int32), handle, exposed.remote)
                for _ in range(rounds)
            ]
            for operation in added:
                operation.result(TIMEOUT)
            assert (exposed.content() == rounds).all()
        assert words[1:].tolist() == [rounds, rounds]


@pytest.mark.skipif("siw" in DEVICE, reason="iWARP has no shared receives")
def test_shared_receives_may_run_out():
    """A stopped target has more to receive than slots: the devices of the others wait until it goes on."""
    with Peer(DEVICE, verbs_srq=16) as target, pyfab.Domain(DEVICE, peer_deadline=30) as domain:
        words = target.expose(np.zeros(1, np.int32))
        ends = [domain.endpoint() for _ in range(20)]
        handles = [end.av.insert(target.address) for end in ends]
        for end, handle in zip(ends, handles, strict=True):
            adds(end, handle, words.remote, np.int32, 1)
        target.suspend()
        try:
            added = [
                end.atomic(AtomicOp.SUM, np.ones(1, np.int32), handle, words.remote)
                for end, handle in zip(ends, handles, strict=True)
            ]
        finally:
            target.resume()
        for operation in added:
            operation.result(TIMEOUT)
        assert words.content()[0] == 40
        for end in ends:
            end.close()


@pytest.mark.parametrize("slots", ["3", "-1", "some", str(1 << 31), str(1 << 40)])
def test_bad_numbers_of_shared_receives_are_refused(slots):
    with pytest.raises(pyfab.FabricError, match="verbs_srq is"):
        pyfab.Domain(DEVICE, verbs_srq=slots)


def test_a_device_may_be_named_with_its_port(here):
    with Peer(f"{DEVICE}/1") as peer:
        handle, exposed = known(here, peer)
        here.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        assert exposed.content().all()
    with pytest.raises(pyfab.InvalidArgumentError, match=f'no device "{DEVICE.removeprefix("verbs:")}/9"'):
        pyfab.Domain(f"{DEVICE}/9")


def test_an_address_is_chosen_by_its_gid():
    nic = pyfab.getinfo(DEVICE)[0].nics[0].state
    found = re.search(r"GID (\d+) RoCE v2", nic)
    if not found:
        with pytest.raises(pyfab.InvalidArgumentError, match="it has none, leave the setting out"):
            pyfab.Domain(DEVICE, verbs_gid_index=0)
        return
    index = int(found[1])
    with (
        Peer(DEVICE) as peer,
        pyfab.Domain(DEVICE, verbs_gid_index=index) as domain,
        domain.endpoint() as end,
    ):
        handle, exposed = known(end, peer)
        end.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        assert exposed.content().all()
    for wrong in (250, -1, "first"):
        with pytest.raises(
            pyfab.InvalidArgumentError, match=rf'verbs_gid_index is "{wrong}".* there is .*{index} \('
        ):
            pyfab.Domain(DEVICE, verbs_gid_index=wrong)


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(pyfab.InvalidArgumentError, match="verbs has no device"):
        pyfab.Domain("verbs:nowhere0")


def told_devices(domain):
    """What the device of its verbs link was told: held, made, reused."""
    counts = domain.stats()["registrations"]
    assert all(not any(each.values()) for link, each in counts.items() if not link.startswith("verbs"))
    (verbs,) = (each for link, each in counts.items() if link.startswith("verbs"))
    return verbs["held"], verbs["made"], verbs["reused"]


def told_devices_there(target):
    return told_devices(target.domain)


@pytest.mark.req("LNX-59")
def test_memory_is_registered_with_the_link_that_needs_it():
    linked = f"shm+{DEVICE}"
    with Peer(linked) as near, Peer(DEVICE) as far, pyfab.Domain(linked) as domain, domain.endpoint() as here:
        data = np.arange(SIZE // 8).view(np.uint8)
        region = domain.register(data, pyfab.Access.ALL)
        there, exposed = known(here, near)
        here.write(data, there, exposed.remote).result(TIMEOUT)
        assert here.report(there)[0].startswith("shm")
        assert told_devices(domain)[1] == near.run(told_devices_there)[1] == 0

        there, exposed = known(here, far)
        here.write(data, there, exposed.remote).result(TIMEOUT)
        here.write(data, there, exposed.remote).result(TIMEOUT)  # the first may have gone as a message
        held, made, reused = told_devices(domain)
        assert held == made == 1
        assert far.run(told_devices_there)[0] == 1
        here.write(data, there, exposed.remote).result(TIMEOUT)
        assert told_devices(domain) == (1, 1, reused + 1)
        region.close()
        assert told_devices(domain)[0] == 0
        exposed.close()
        assert far.run(told_devices_there)[0] == 0


@pytest.mark.req("LNX-59", "MR-71")
def test_a_cache_keeps_what_the_device_was_told():
    """For the next region on the same memory and for transfers without a region, until the memory goes or domains end."""
    with Peer(DEVICE) as far, pyfab.Domain(DEVICE, mr_cache=True) as domain, domain.endpoint() as here:
        there, exposed = known(here, far)
        pages = mmap.mmap(-1, SIZE)
        data = np.frombuffer(pages, np.uint8)

        def write(data: np.ndarray) -> None:
            data[:] = data[0] ^ 1
            here.write(data, there, exposed.remote).result(TIMEOUT)
            assert (exposed.content() == data).all()

        write(data)  # may go as a message
        write(data)
        held, made, _ = told_devices(domain)
        assert held == made == 1, "memory without a region"
        for _ in range(3):
            with domain.register(data, pyfab.Access.READ):
                write(data)
            write(data)
        held, made, reused = told_devices(domain)
        assert made <= 2 and held == made, (
            "one to be read by the device and one to be written, whatever their number of uses"
        )
        assert reused >= 5
        del data
        pages.close()
        assert told_devices(domain)[0] == 0, "the memory is gone, and the device knows it no more"
        assert told_devices(domain)[1] == made
