"""What becomes of transfers when a device fails: `scripts/mock-verbs-tests` runs it, over a device that fails as it is told."""

from __future__ import annotations

import contextlib
import gc
import time

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
SIZE = 64 * 1024  # bytes: large enough for devices to move them at the first use of a region
PART = np.ones(8192, np.uint8)  # two of them fill a message of a stream, by which remote data goes
REFUSED = ["access", "operation", "request"]  # by the peer's device, which has done nothing then
UNKNOWN = ["retry", "local", "rnr"]  # ended by this side's device


@pytest.fixture
def here():
    with pyfab.Domain(DEVICE, peer_deadline=5) as domain, domain.endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def peer():
    """A process with a device of its own, on which nothing goes wrong."""
    with Peer(DEVICE) as there:
        yield there


def known(endpoint, peer, content):
    """A region of the peer that both devices know already."""
    handle, exposed = endpoint.av.insert(peer.address), peer.expose(content)
    endpoint.read(np.zeros_like(content), handle, exposed.remote).result(TIMEOUT)
    endpoint.read(np.zeros_like(content), handle, exposed.remote).result(TIMEOUT)
    return handle, exposed


def outcomes(operations):
    """The error of each, or None."""
    return [operation.exception(TIMEOUT) for operation in operations]


def works(endpoint, handle, exposed):
    """Whether a put arrives, once what went wrong is over."""
    data = np.full_like(exposed.content(), 77)
    endpoint.write(data, handle, exposed.remote).result(TIMEOUT)
    return (exposed.content() == data).all()


@pytest.mark.parametrize("status", REFUSED + UNKNOWN)
@pytest.mark.parametrize("kind", ["write", "read"])
def test_puts_and_gets_outlive_a_failed_request(here, peer, kind, status):
    """Doing one twice does no harm, so each is repeated, with those behind it."""
    rows = np.arange(30 * SIZE, dtype=np.uint8).reshape(30, SIZE)
    handle, exposed = known(here, peer, np.zeros_like(rows) if kind == "write" else rows)
    into = rows.copy() if kind == "write" else np.zeros_like(rows)
    start = here.write if kind == "write" else here.read
    with mock.faults(f"fail={kind}:11:{status}"):
        crowd = [start(row, handle, remote) for row, remote in zip(into, exposed.remote, strict=True)]
        assert outcomes(crowd) == [None] * 30
        assert mock.injected() == 1
    assert ((exposed.content() if kind == "write" else into) == rows).all()
    counts = here.counts(handle)
    assert (counts["settled"], counts["errors"]) == (32, 0)


@pytest.mark.parametrize("told", ["", ",vague_errors=1"], ids=["exactly", "vaguely"])
@pytest.mark.parametrize("kind", ["atomic", "write"])
@pytest.mark.parametrize("status", REFUSED)
def test_no_update_is_done_twice_where_a_request_is_refused(here, peer, status, kind, told):
    """Also where the device tells the error under an earlier request, which was done as others behind it were."""
    handle, words = known(here, peer, np.zeros(1, np.int64))
    _, rows = known(here, peer, np.zeros((100, SIZE // 100), np.uint8))
    here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote).result(TIMEOUT)
    # So many, and so late, that they go to the device in chains.
    with mock.faults(f"fail={kind}:75:{status}{told},late_us=5000"):
        crowd = []
        for number in range(100):
            one = np.ones(1, np.int64)
            crowd.extend(here.atomic(AtomicOp.SUM, one, handle, words.remote) for _ in range(3))
            content = np.full(SIZE // 100, 1 + number, np.uint8)
            crowd.append(here.write(content, handle, rows.remote[number]))
        assert outcomes(crowd) == [None] * len(crowd)
        assert mock.injected() == 1
    assert words.content()[0] == 301
    assert (rows.content() == 1 + np.arange(100)[:, None]).all()


@pytest.mark.parametrize("status", UNKNOWN)
def test_an_update_of_which_nobody_knows_is_not_done_twice(here, peer, status):
    handle, words = known(here, peer, np.zeros(1, np.int64))
    here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote).result(TIMEOUT)
    with mock.faults(f"fail=atomic:11:{status}"):
        crowd = [here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote) for _ in range(30)]
        errors = [error for error in outcomes(crowd) if error is not None]
        assert mock.injected() == 1
    assert errors and all(isinstance(error, pyfab.PeerLostError) for error in errors)
    assert 31 - len(errors) <= words.content()[0] <= 31
    here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote).result(TIMEOUT)


@pytest.mark.parametrize("status", REFUSED + UNKNOWN)
def test_a_stream_that_fails_ends_what_it_carried_and_another_follows(here, peer, status):
    handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
    with Peer(DEVICE) as other:
        unaffected, whole = known(here, other, np.zeros(SIZE, np.uint8))
        with mock.faults(f"fail=send:3:{status}"):
            small = [here.write(PART, handle, exposed.remote[: PART.size], data=1) for _ in range(30)]
            errors = [error for error in outcomes(small) if error is not None]
            assert mock.injected() == 1
        assert errors and all(isinstance(error, pyfab.PeerLostError) for error in errors)
        assert "the peer is gone or stopped answering" in str(errors[0])
        assert works(here, unaffected, whole)
        assert works(here, handle, exposed)


def test_a_peer_that_is_not_ready_ends_the_stream(here, peer):
    handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
    with mock.faults("rnr=1/4"):
        small = [here.write(PART, handle, exposed.remote[: PART.size], data=1) for _ in range(30)]
        errors = [error for error in outcomes(small) if error is not None]
    assert errors and all(isinstance(error, pyfab.FabricError) for error in errors)
    assert works(here, handle, exposed)


@pytest.mark.parametrize("faults", ["late_us=3000", "reorder_us=5000"])
def test_late_completions_keep_the_order_of_each_peer(here, peer, faults):
    with Peer(DEVICE) as other:
        targets = [known(here, each, np.zeros((20, SIZE), np.uint8)) for each in (peer, other)]
        here.cq.read(max=100)
        with mock.faults(faults):
            for number in range(20):
                for which, (handle, exposed) in enumerate(targets):
                    row = np.full(SIZE, number + which, np.uint8)
                    here.write(row, handle, exposed.remote[number], context=(which, number))
            entries, end = [], time.monotonic() + TIMEOUT
            while len(entries) < 40:
                assert time.monotonic() < end
                here.cq.wait(TIMEOUT)
                entries += here.cq.read(max=40)
        for which, (_, exposed) in enumerate(targets):
            assert [entry.context[1] for entry in entries if entry.context[0] == which] == list(range(20))
            assert (exposed.content() == np.arange(which, 20 + which)[:, None]).all()


def test_a_removed_device_ends_what_is_under_way(peer):
    with pyfab.Domain(DEVICE, peer_deadline=5) as domain, domain.endpoint() as here:
        handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
        with mock.faults("remove_after=10"):
            crowd = []
            with contextlib.suppress(pyfab.UnreachableError):  # once the removal is known here
                crowd.extend(here.write(np.ones(SIZE, np.uint8), handle, exposed.remote) for _ in range(100))
            errors = [error for error in outcomes(crowd) if error is not None]
            assert errors and all(isinstance(error, pyfab.FabricError) for error in errors)
            with pytest.raises(pyfab.FabricError):
                here.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
            with pytest.raises(pyfab.FabricError, match="mock0"):
                pyfab.Domain(DEVICE)
    with pyfab.Domain(DEVICE) as domain, domain.endpoint() as again:
        handle = again.av.insert(peer.address)
        assert works(again, handle, exposed)


def test_a_device_that_is_removed_at_the_target_is_a_lost_peer(here, peer):
    unaffected, whole = known(here, peer, np.zeros(SIZE, np.uint8))
    with Peer(DEVICE) as victim:
        handle, exposed = known(here, victim, np.zeros(SIZE, np.uint8))
        victim.run(set_faults_there, "remove_after=1")
        small = [here.write(PART, handle, exposed.remote[: PART.size], data=1) for _ in range(30)]
        errors = [error for error in outcomes(small) if error is not None]
        assert errors and all(isinstance(error, pyfab.FabricError) for error in errors)
        assert works(here, unaffected, whole)


def set_faults_there(_target, faults):
    mock.set_faults(faults)


@pytest.mark.parametrize("faults", ["mr_limit=64", "max_mr_size=1048576", "max_message=1048576"])
def test_what_a_device_does_not_take_goes_as_messages(faults):
    """More regions than it has keys for, and larger ones, on both sides."""
    with mock.faults(faults), Peer(DEVICE) as peer, pyfab.Domain(DEVICE) as domain, domain.endpoint() as here:
        peer.run(set_faults_there, faults)
        handle = here.av.insert(peer.address)
        exposed = [peer.expose(np.zeros(SIZE, np.uint8)) for _ in range(80)]
        data = [np.full(SIZE, number, np.uint8) for number in range(80)]
        regions = [domain.register(each, pyfab.Access.ALL) for each in data]
        for _ in range(2):
            crowd = [here.write(each, handle, to.remote) for each, to in zip(data, exposed, strict=True)]
            assert outcomes(crowd) == [None] * 80
        assert all((to.content() == number).all() for number, to in enumerate(exposed))
        large = np.random.default_rng(1).integers(0, 256, 5 << 20, np.uint8)
        whole = peer.expose(np.zeros_like(large))
        back = np.zeros_like(large)
        here.write(large, handle, whole.remote).result(TIMEOUT)
        here.read(back, handle, whole.remote).result(TIMEOUT)
        assert (back == large).all()
        for region in regions:
            region.close()


def test_a_device_without_a_key_left_says_so():
    refused = pytest.raises(pyfab.FabricError, match="mock0 gives no access to memory")
    with mock.faults("mr_limit=1"), pyfab.Domain(DEVICE) as domain, domain.endpoint(), refused:
        domain.endpoint()


def test_the_device_holds_nothing_when_all_is_closed(peer):
    exposed = peer.expose(np.zeros(SIZE, np.uint8))

    def life(faults):
        with mock.faults(faults), pyfab.Domain(DEVICE, peer_deadline=5) as domain, domain.endpoint() as here:
            handle = here.av.insert(peer.address)
            region = domain.register(np.ones(SIZE, np.uint8), pyfab.Access.ALL)
            outcomes([here.write(np.ones(SIZE, np.uint8), handle, exposed.remote) for _ in range(20)])
            region.close()

    life("")
    gc.collect()
    before = mock.objects()
    for faults in ("", "fail=write:5:retry", "fail=send:4:retry", "reorder_us=1000", "remove_after=9"):
        life(faults)
        gc.collect()
        assert mock.objects() == before, faults


def test_another_link_goes_on_when_the_device_is_removed():
    linked = f"{DEVICE}+tcp"
    with Peer(linked) as peer, pyfab.Domain(linked, peer_deadline=5) as domain, domain.endpoint() as here:
        handle, exposed = known(here, peer, np.zeros((50, SIZE), np.uint8))
        assert "mock0" in here.report(handle)[2]
        with mock.faults("remove_after=10"):
            row = np.ones(SIZE, np.uint8)
            assert outcomes([here.write(row, handle, remote) for remote in exposed.remote]) == [None] * 50
            assert exposed.content().all()

            def down():
                # It takes the device some requests, of those that do not go over tcp.
                here.write(row, handle, exposed.remote[0]).result(TIMEOUT)
                return "verbs.0 down" in here.report(handle)[1]  # between attempts

            wait_for(down)


def flood(target, address, remote):
    handle = target.endpoint.av.insert(address)
    while True:
        try:
            target.endpoint.write(np.ones(remote.nbytes, np.uint8), handle, remote, data=1)
        except pyfab.FabricError:
            time.sleep(0.001)


KILLED = 2
SLOTS = 64


@pytest.mark.parametrize(
    "event", ["", "last_receive_late_us=300000", "last_receive_never=1"], ids=["soon", "late", "never"]
)
def test_peers_that_are_killed_take_no_shared_receives_along(event):
    """Nor if the device tells late that a queue pair takes none any more; one that never does is not waited for, for ever."""
    with pyfab.Domain(DEVICE, verbs_srq=SLOTS, peer_deadline=5) as domain, domain.endpoint() as here:
        words = np.zeros(2000, np.uint8)
        faults = ",".join(filter(None, ["reorder_us=100000", event]))
        with domain.register(words, pyfab.Access.REMOTE) as region, mock.faults(faults):
            for _ in range(KILLED):
                with Peer(DEVICE) as victim:
                    victim.start(flood, here.address, region.remote)
                    wait_for(lambda: mock.objects()["shared_receive"] < SLOTS - 8)
                    victim.kill()
                wait_for(lambda: mock.objects()["qp"] == 0)
            wait_for(lambda: mock.objects()["shared_receive"] == SLOTS)


def test_shared_receives_serve_on_after_many_deaths():
    with pyfab.Domain(DEVICE, verbs_srq=16, peer_deadline=5) as domain, domain.endpoint() as here:
        words = np.zeros(2000, np.uint8)
        with domain.register(words, pyfab.Access.REMOTE) as region, mock.faults("reorder_us=20000"):
            for _ in range(3):
                with Peer(DEVICE) as victim:
                    victim.start(flood, here.address, region.remote)
                    wait_for(lambda: mock.objects()["shared_receive"] < 8)
                    victim.kill()
            with Peer(DEVICE) as last:
                last.run(put_with_data, here.address, region.remote)
        assert (words == 5).all()


def put_with_data(target, address, remote):
    handle = target.endpoint.av.insert(address)
    target.endpoint.write(np.full(remote.nbytes, 5, np.uint8), handle, remote, data=1).result(TIMEOUT)


def test_an_event_that_was_read_keeps_no_queue_pair(peer):
    """The device waits for its acknowledgement before it destroys one, and ends this process if none comes."""
    for _ in range(20):
        with pyfab.Domain(DEVICE, verbs_srq=SLOTS) as domain, domain.endpoint() as here:
            handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
            mock.tell("qp_fatal")
            outcomes([here.write(PART, handle, exposed.remote[: PART.size], data=1)])
    assert mock.objects()["qp"] == 0


@pytest.mark.parametrize("what", ["device_fatal", "cq_err", "srq_err"])
def test_what_a_device_says_ends_all_at_once(what):
    """Not only at the deadline, though no completion tells of it. Each operation has one outcome."""
    with (
        Peer(DEVICE) as there,
        pyfab.Domain(DEVICE, verbs_srq=SLOTS, peer_deadline=1000) as domain,
        domain.endpoint() as here,
    ):
        handle, exposed = known(here, there, np.zeros(SIZE, np.uint8))
        events = domain.event_queue(size=64)
        here.bind(events)
        here.cq.read(max=100)
        with mock.faults("late_us=1000000000"):
            for number in range(20):
                here.write(PART, handle, exposed.remote[: PART.size], data=1, context=number)
            for number in range(20, 40):
                here.write(np.ones(SIZE, np.uint8), handle, exposed.remote, context=number)
            mock.tell(what)
            errors = []
            wait_for(lambda: errors.extend(failed(here)) or len(errors) == 40)
            assert sorted(errors) == list(range(40))
            assert events.read(TIMEOUT).type == pyfab.EventType.PEER_LOST
            with pytest.raises(pyfab.FabricError, match="mock0 has failed"):
                here.write(PART, handle, exposed.remote[: PART.size]).result(TIMEOUT)
        assert failed(here) in ([], [None])  # of the last one


def failed(endpoint):
    """The contexts of operations that have ended since, all of them with an error."""
    entries = endpoint.cq.read(max=100)
    assert all(isinstance(entry.error, pyfab.FabricError) for entry in entries)
    return [entry.context for entry in entries]


def test_ports_that_change_are_told_and_lose_nobody(peer):
    with pyfab.Domain(DEVICE) as domain, domain.endpoint() as here:
        handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
        events = domain.event_queue(size=64)
        here.bind(events)
        for what, type, errno in (
            ("port_err", pyfab.EventType.LINK_DOWN, True),
            ("gid_change", pyfab.EventType.ADDRESS_CHANGED, False),
            ("port_active", pyfab.EventType.LINK_UP, False),
        ):
            mock.tell(what)
            event = events.read(TIMEOUT)
            assert (event.type, event.peer, event.errno != 0) == (type, pyfab.ADDR_NOTAVAIL, errno)
            assert event.link.startswith("verbs")
        assert works(here, handle, exposed)
        assert events.read() is None


def test_a_failed_queue_pair_ends_what_it_carried_and_another_follows(here, peer):
    handle, exposed = known(here, peer, np.zeros(SIZE, np.uint8))
    mock.tell("qp_fatal")
    wait_for(lambda: outcomes([here.write(PART, handle, exposed.remote[: PART.size], data=1)]) == [None])
    assert works(here, handle, exposed)


def wait_for(condition, seconds=TIMEOUT):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, mock.objects()
        time.sleep(0.002)


CALLS = ["reg_mr", "create_qp", "post_send", "post_recv", "resolve", "connect", "accept"]


def test_devices_that_failed_are_tried_again(here, peer):
    """Until then messages do their work, and the report says so."""
    handle, exposed = here.av.insert(peer.address), peer.expose(np.zeros(SIZE, np.uint8))
    here.write(PART, handle, exposed.remote[: PART.size], data=1).result(TIMEOUT)  # by a stream
    with mock.faults("refuse=create_qp:1/1"):
        wait_for(lambda: works(here, handle, exposed) and "by messages" in here.report(handle)[1])
    streams = mock.objects()["qp"]
    wait_for(lambda: works(here, handle, exposed) and mock.objects()["qp"] > streams)
    wait_for(lambda: works(here, handle, exposed) and "by messages" not in here.report(handle)[1])


def test_a_connection_over_which_nothing_succeeds_is_not_made_for_ever(here, peer):
    handle, exposed = here.av.insert(peer.address), peer.expose(np.zeros(SIZE, np.uint8))
    with mock.faults("fail=read:1/1:local"):
        for _ in range(10):
            assert (exposed.content() == 0).all()
            here.read(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        assert mock.injected() == 3


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("call", CALLS)
def test_calls_that_a_device_refuses_are_an_outcome(peer, call, where):
    """Each transfer succeeds or says why not, and those that come later work."""
    exposed = peer.expose(np.zeros(SIZE, np.uint8))
    word = peer.expose(np.zeros(1, np.int64))
    for often in ("1", "2", "3", "1/2", "1/3", "1/5"):
        with pyfab.Domain(DEVICE, peer_deadline=5) as domain, domain.endpoint() as here:
            handle = here.av.insert(peer.address)
            faults = f"refuse={call}:{often}"
            if where == "there":
                peer.run(set_faults_there, faults)
            with mock.faults(faults if where == "here" else ""):
                crowd = []
                for _ in range(4):
                    crowd += [here.write(np.ones(SIZE, np.uint8), handle, exposed.remote) for _ in range(10)]
                    crowd += [
                        here.write(PART, handle, exposed.remote[: PART.size], data=1) for _ in range(10)
                    ]
                    crowd.append(here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, word.remote))
                    errors = [error for error in outcomes(crowd) if error is not None]
                    assert all(isinstance(error, pyfab.FabricError) for error in errors), (often, errors)
            peer.run(set_faults_there, "")
            assert works(here, handle, exposed), often


def test_a_stale_description_reaches_no_later_region(here, monkeypatch):
    """Neither where a device gives a key again at once, as some drivers do, and the region lies where the former one lay."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", "last_key_first=1")
    with Peer(DEVICE) as there:
        handle = here.av.insert(there.address)
        former = there.run(shown)
        for _ in range(2):  # by devices from the second one on
            here.write(np.ones(SIZE, np.uint8), handle, former).result(TIMEOUT)
        later = there.run(shown)
        with pytest.raises(pyfab.KeyRejectedError):
            here.write(np.full(SIZE, 2, np.uint8), handle, former).result(TIMEOUT)
        assert there.run(content) == 1
        here.write(np.full(SIZE, 3, np.uint8), handle, later).result(TIMEOUT)
        assert there.run(content) == 3


def shown(target):
    """Registers the one array of this side, and closes its former region."""
    memory = target.kept.setdefault("memory", np.zeros(SIZE, np.uint8))
    if region := target.kept.pop("region", None):
        region.close()
    region = target.kept["region"] = target.endpoint._domain.register(memory, pyfab.Access.REMOTE)
    # Its description exists as soon as somebody asks for it; the key of the former one is free by then.
    handle = target.endpoint.av.insert(target.endpoint.address)
    for _ in range(2):
        target.endpoint.read(np.zeros(SIZE, np.uint8), handle, region.remote).result(TIMEOUT)
    return region.remote


def content(target):
    (value,) = set(target.kept["memory"].tolist())
    return value


@pytest.mark.parametrize("own", ["reads_served=1", "reads_begun=1"])
def test_reads_under_way_are_what_one_side_begins_and_the_other_serves(here, monkeypatch, own):
    """What this side serves bounds the other side's, not its own."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", own)
    with Peer(DEVICE) as initiator, here._domain.register(np.zeros(SIZE), pyfab.Access.REMOTE) as region:
        most = initiator.run(read_at_once, here.address, region.remote)
    assert most == (1 if own == "reads_begun=1" else 16)


def read_at_once(target, address, remote):
    handle = target.endpoint.av.insert(address)
    for _ in range(2):
        target.endpoint.read(np.zeros(SIZE), handle, remote).result(TIMEOUT)
    crowd = [target.endpoint.read(np.zeros(SIZE), handle, remote) for _ in range(60)]
    assert outcomes(crowd) == [None] * 60
    return mock.asked()["most_reads"]


def test_long_transfers_are_many_requests(here, monkeypatch):
    """Each of them is a sign of life, also where a device would take all at once."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", f"max_message={1 << 30}")
    with (
        Peer(DEVICE) as initiator,
        here._domain.register(np.zeros(40 << 20, np.uint8), pyfab.Access.REMOTE) as region,
    ):
        assert initiator.run(put_twice, here.address, region.remote) == 16 << 20
        assert (np.asarray(region) == 5).all()


def put_twice(target, address, remote):
    handle = target.endpoint.av.insert(address)
    for value in (4, 5):
        data = np.full(remote.nbytes, value, np.uint8)
        target.endpoint.write(data, handle, remote).result(TIMEOUT)
    return mock.asked()["longest"]
