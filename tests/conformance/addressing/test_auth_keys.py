"""Endpoints with several authorization keys: a peer proves one of them, and is kept apart from those of the others."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pyfab
import pytest
from pyfab import ADDR_NOTAVAIL, CompletionFlag, InsertFlag
from pyfab.testing import Peer
from support import TIMEOUT, Combination, collect, failure

A, B, C = b"the first key", b"the second key", b"a key that only strangers have"
KEYED = InsertFlag.AUTH_KEY
REFUSED = (pyfab.KeyRejectedError, pyfab.UnreachableError, pyfab.AccessDeniedError)


class Many:
    """An endpoint with keys A and B here, and a peer that opens endpoints with whatever keys it is told."""

    def __init__(self, combination: Combination, peer: Peer, stack: ExitStack, **vector) -> None:
        self.alloc = combination.alloc
        self.peer = peer
        self.stack = stack
        self.domain = stack.enter_context(
            pyfab.Domain(combination.spec, **combination.settings, av_auth_keys=True)
        )
        self.av = stack.enter_context(self.domain.address_vector(**vector))
        self.a, self.b = self.av.insert_auth_key(A), self.av.insert_auth_key(B)
        self.endpoint = stack.enter_context(self.domain.endpoint(self.av))
        stack.callback(peer.run, close_all)

    def open(self, name, *keys, own=None):
        """An endpoint of the peer with these keys, or with none but `own`, in the vector of which we are. Its address."""
        return self.peer.run(open_there, name, keys, own, self.endpoint.address)

    def expose(self, key):
        """A region here for peers that come under `key`, and its memory."""
        memory = self.domain.alloc((8,)) if self.alloc else np.zeros(8)
        return memory, self.stack.enter_context(
            self.domain.register(memory, pyfab.Access.REMOTE, auth_key=key)
        )

    def under(self, address, key):
        (handle,) = self.av.insert([address], flags=KEYED, fi_addr=[key])
        return handle


@pytest.fixture(scope="module")
def peer(combination: Combination):
    with Peer(combination.spec, where=combination.where, **combination.settings, av_auth_keys=True) as peer:
        yield peer


@pytest.fixture
def many(combination: Combination, peer: Peer):
    with ExitStack() as stack:
        yield Many(combination, peer, stack)


def open_there(target, name, keys, own, other):
    av = target.domain.address_vector()
    handles = [av.insert_auth_key(key) for key in keys]
    endpoint = target.domain.endpoint(av, auth_key=own)
    us = av.insert([other] * len(keys), flags=KEYED, fi_addr=handles) if keys else [av.insert(other)]
    target.kept[name] = endpoint, us
    return endpoint.address


def close_all(target):
    target.kept.pop(0, None)
    for name in [name for name in target.kept if isinstance(name, str)]:
        kept = target.kept.pop(name)
        if isinstance(kept, tuple) and isinstance(kept[0], pyfab.Endpoint):
            kept[0].close()
            kept[0].av.close()
        elif isinstance(kept, tuple):
            kept[1].close()


def attempt(target, name, what, *args, key=0, **options):
    """How an operation of that endpoint on us ends: None, or the error. key: which of its keys it goes under."""
    endpoint, us = target.kept[name]
    try:
        operation = getattr(endpoint, what)(args[0], us[key], *args[1:], **options)
        operation.result(TIMEOUT)
    except pyfab.FabricError as error:
        return type(error), str(error)
    return None


def begin(target, name, what, *args, key=0):
    """Starts an operation that goes on after the call."""
    endpoint, us = target.kept[name]
    target.kept.setdefault(0, []).append(getattr(endpoint, what)(args[0], us[key], *args[1:]))


def put(many, name, region, value=1.0, key=0, **options):
    error = many.peer.run(attempt, name, "write", np.full(8, value), region.remote, key=key, **options)
    return error and error[0]


def send(many, name, text=b"12345678", tag=1, key=0):
    return many.peer.run(attempt, name, "tsend", text, tag, key=key)


@pytest.mark.req("AV-77", "AV-79")
def test_whoever_has_one_of_the_keys_is_served(many: Many):
    for name, key in (("a", A), ("b", B)):
        many.open(name, own=key)
        memory, region = many.expose(key)
        assert put(many, name, region) is None
        assert memory.all()
        landing = np.zeros(8, "u1")
        received = many.endpoint.trecv(landing, tag=1)
        assert send(many, name) is None
        assert received.result(TIMEOUT).nbytes == 8


@pytest.mark.req("AV-77", "MR-68")
@pytest.mark.parametrize("own", [C, None], ids=["another key", "none"])
def test_strangers_learn_and_move_nothing(many: Many, own):
    many.open("stranger", own=own)
    regions = [many.expose(key) for key in (A, B, None)]
    for memory, region in regions:
        assert issubclass(put(many, "stranger", region), REFUSED)
        assert not memory.any()
    assert send(many, "stranger") is not None
    with pytest.raises(pyfab.FabricError):
        many.endpoint.peek(tag=1)
    many.open("a", own=A)
    assert put(many, "a", regions[0][1]) is None


@pytest.mark.req("AV-79")
def test_a_region_is_for_peers_of_its_key(many: Many):
    """Whether the peer has one of the keys or both, and whatever it asks for."""
    regions = {key: many.expose(key) for key in (A, B)}
    many.open("a", own=A)
    many.open("both", A, B)
    for name, key, wrong, under in (("a", A, B, 0), ("both", A, B, 0), ("both", B, A, 1)):
        memory, region = regions[wrong]
        memory[:] = 0
        for options in ({}, {"data": 7}):
            assert put(many, name, region, key=under, **options) is pyfab.KeyRejectedError
        remote = region.remote
        for what in ("read", "fetch_atomic"):
            there = many.peer.run(reach, name, what, remote, under)
            assert there is pyfab.KeyRejectedError
        assert not memory.any()
        assert put(many, name, regions[key][1], 3.0, key=under, data=7) is None
        assert (regions[key][0] == 3).all()
        regions[key][0][:] = 0


@pytest.mark.req("AV-77", "AV-79")
def test_a_region_takes_several_keys(many: Many):
    """In a list, as those of an address vector, or one by its handle, which counts as such only with its flag."""
    many.open("a", own=A)
    many.open("b", own=B)
    cases = [([A, B], {}, "ab"), (many.av, {}, "ab"), ([b"stranger", B], {}, "b")]
    flag = {"flags": pyfab.MRFlag.AUTH_KEY}
    cases += [((many.av, many.a), flag, "a"), ((many.av, many.b), flag, "b")]
    for keys, options, open_to in cases:
        memory = many.domain.alloc((8,)) if many.alloc else np.zeros(8)
        with many.domain.register(memory, pyfab.Access.REMOTE, auth_key=keys, **options) as region:
            for number, name in enumerate("ab", 1):
                expected = None if name in open_to else pyfab.KeyRejectedError
                assert put(many, name, region, float(number)) is expected
                assert put(many, name, region, float(number), data=7) is expected
                assert (memory == number).all() == (name in open_to)
    later = many.av.insert_auth_key(b"later, as long")
    memory = np.zeros(8)
    for wrong, options in (
        ((many.av, many.a), {}), (many.a, {}), (many.a, flag), ((many.av, 99), flag), (many.av, flag), ([], {}), ([8], {}),
    ):  # fmt: skip
        with pytest.raises(pyfab.InvalidArgumentError):
            many.domain.register(memory, pyfab.Access.REMOTE, auth_key=wrong, **options)
    many.av.remove(later, flags=KEYED)


@pytest.mark.req("AV-77")
def test_a_region_takes_the_keys_that_are_there_when_it_is_enabled():
    with (
        pyfab.Domain("shm", av_auth_keys=True, mr_mode=pyfab.MRMode.ENDPOINT) as domain,
        pyfab.Domain("shm", av_auth_keys=True) as other,
        domain.address_vector() as av,
    ):
        av.insert_auth_key(A)
        memory = np.zeros(8)
        region = domain.register(memory, pyfab.Access.REMOTE, auth_key=av)
        av.insert_auth_key(B)
        late = b"not there yet"
        with domain.endpoint(av) as endpoint, region:
            region.bind(endpoint)
            region.enable()
            av.insert_auth_key(late)
            for key, taken in ((A, True), (B, True), (late, False)):
                with other.endpoint(auth_key=key) as peer:
                    try:
                        peer.write(np.ones(8), peer.av.insert(endpoint.address), region.remote).result(
                            TIMEOUT
                        )
                    except REFUSED:
                        assert not taken
                    else:
                        assert taken


def reach(target, name, what, remote, key):
    endpoint, us = target.kept[name]
    if what == "read":
        return type(failure(lambda: endpoint.read(np.zeros(8), us[key], remote)))
    one = np.ones(1)
    return type(failure(lambda: endpoint.fetch_atomic(pyfab.AtomicOp.SUM, one, one.copy(), us[key], remote)))


@pytest.mark.req("AV-77")
def test_a_key_inserted_later_is_not_taken(many: Many):
    late = many.av.insert_auth_key(C)
    address = many.open("late", own=C)
    memory, region = many.expose(C)
    assert issubclass(put(many, "late", region), REFUSED)
    assert not memory.any()
    with pytest.raises(pyfab.InvalidArgumentError, match="authorization key"):
        many.endpoint.send(b"x", many.under(address, late)).result(TIMEOUT)
    with pytest.raises(pyfab.InvalidArgumentError, match="authorization key"):
        many.endpoint.recv(np.zeros(8), late, flags=KEYED)
    many.av.remove(late, flags=KEYED)
    with pytest.raises(pyfab.BusyError):
        many.av.remove(many.b, flags=KEYED)


@pytest.mark.req("AV-79")
def test_a_peer_without_a_key_cannot_be_reached_where_there_are_several(many: Many):
    address = many.open("a", own=A)
    plain = many.av.insert(address)
    for start in (
        lambda: many.endpoint.send(b"x", plain),
        lambda: many.endpoint.write(np.ones(1), plain, (0, 1)),
        lambda: many.endpoint.report(plain),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=r"InsertFlag\.AUTH_KEY"):
            start()
    many.endpoint.send(b"x", many.under(address, many.a)).result(TIMEOUT)
    with many.domain.address_vector() as single:  # with one key there is no doubt
        single.insert_auth_key(A)
        with many.domain.endpoint(single) as endpoint:
            endpoint.send(b"x", single.insert(address)).result(TIMEOUT)


@pytest.mark.req("AV-79")
def test_one_peer_under_two_keys(many: Many):
    """Has two handles, whose ways have nothing in common."""
    address = many.open("both", A, B)
    first, second = many.under(address, many.a), many.under(address, many.b)
    assert first != second
    remotes = many.peer.run(expose_there, [A, B])
    many.endpoint.write(np.ones(8), first, remotes[0]).result(TIMEOUT)
    assert isinstance(failure(lambda: many.endpoint.write(np.ones(8), first, remotes[1])), REFUSED)
    assert many.endpoint.counts(second)["posted"] == 0
    many.endpoint.write(np.ones(8), second, remotes[1]).result(TIMEOUT)
    assert isinstance(failure(lambda: many.endpoint.write(np.ones(8), second, remotes[0])), REFUSED)
    assert many.endpoint.counts(first)["posted"] == many.endpoint.counts(second)["posted"] == 2
    for handle, key in ((second, 1), (first, 0)):
        many.endpoint.tsend(b"12345678", handle, tag=5).result(TIMEOUT)
        assert many.peer.run(received_from, "both", 5) == key  # its own handle of us under that key
    for key, handle in enumerate((first, second)):
        assert send(many, "both", tag=6, key=key) is None
        told = many.endpoint.trecv(np.zeros(8, "u1"), tag=6, peer=handle).result(TIMEOUT)
        assert told.source == handle
        assert not told.flags & CompletionFlag.AUTH_KEY
        many.peer.run(begin, "both", "tsend", bytes(100_000), 7, key=key)  # announced
    for handle in (second, first):
        landing = np.zeros(100_000, "u1")
        assert many.endpoint.trecv(landing, tag=7, peer=handle).result(TIMEOUT).source == handle


def expose_there(target, keys):
    remotes = []
    for key in keys:
        memory = np.zeros(8)
        region = target.domain.register(memory, pyfab.Access.REMOTE, auth_key=key)
        target.kept[f"region {key!r}"] = memory, region
        remotes.append(region.remote)
    return remotes


def received_from(target, name, tag):
    endpoint, us = target.kept[name]
    return us.index(endpoint.trecv(np.zeros(8, "u1"), tag=tag).result(TIMEOUT).source)


@pytest.mark.req("AV-79")
@pytest.mark.parametrize("ignore", [0, 0xF])
@pytest.mark.parametrize("first", ["receives", "messages"])
def test_a_receive_filtered_by_a_key(many: Many, ignore, first):
    """Takes messages of that key's peers only, whoever of them is known."""
    many.av.insert([many.open("a", own=A)], flags=KEYED, fi_addr=[many.a])
    many.open("b", own=B)

    def receive(key):
        return many.endpoint.trecv(np.zeros(8, "u1"), tag=1, ignore=ignore, peer=key, flags=KEYED)

    if first == "receives":
        posted = [receive(key) for key in (many.b, many.a, many.b)]
    assert [send(many, name) for name in "aabb"] == [None] * 4
    if first == "messages":
        while many.endpoint.message_stats()["unexpected"] < 4:
            many.endpoint.progress()
        posted = [receive(key) for key in (many.b, many.a, many.b)]
    told = [operation.result(TIMEOUT).source for operation in posted]
    assert told == [many.b, 0, many.b]
    with pytest.raises(pyfab.FabricError):
        many.endpoint.peek(tag=1, peer=many.b, flags=KEYED)
    assert many.endpoint.peek(tag=1, peer=many.a, flags=KEYED).nbytes == 8
    assert receive(many.a).result(TIMEOUT).nbytes == 8


@pytest.mark.req("AV-78", "AV-79")
def test_what_a_filter_must_be(many: Many):
    for peer in (77, None, ADDR_NOTAVAIL, 2**40):
        with pytest.raises(pyfab.InvalidArgumentError):
            many.endpoint.recv(np.zeros(8), peer, flags=KEYED)
    with pytest.raises(pyfab.BadFlagsError):
        many.endpoint.recv(np.zeros(8), many.a, flags=InsertFlag.MORE)
    with pytest.raises(pyfab.InvalidArgumentError):  # an ordinary handle, of which there is none
        many.endpoint.recv(np.zeros(8), many.a)


@pytest.mark.req("AV-82", "AV-73")
@pytest.mark.parametrize("user_id", [False, True])
def test_what_is_reported_of_a_sender(combination: Combination, peer: Peer, user_id):
    with ExitStack() as stack:
        many = Many(combination, peer, stack, user_id=user_id)
        address = many.open("b", own=B)
        _memory, region = many.expose(B)

        def reported(many=many, region=region):
            assert send(many, "b") is None
            message = many.endpoint.trecv(np.zeros(8, "u1"), tag=1).result(TIMEOUT)
            many.endpoint.cq.read(max=100)
            assert put(many, "b", region, data=5) is None
            (entry,) = collect(many.endpoint.cq, 1)
            assert entry.flags & CompletionFlag.REMOTE_CQ_DATA
            assert send(many, "b", tag=2) is None
            waiting = many.endpoint.peek(tag=2)
            assert many.endpoint.trecv(np.zeros(8, "u1"), tag=2).result(TIMEOUT).source == waiting.source
            assert len({one.source for one in (message, entry, waiting)}) == 1
            (of_key,) = {bool(one.flags & CompletionFlag.AUTH_KEY) for one in (message, entry, waiting)}
            return message.source, of_key

        if user_id:
            assert reported() == (ADDR_NOTAVAIL, True)
            many.av.set_user_id(many.b, 0xABC, flags=KEYED)
            assert reported() == (0xABC, True)
            with pytest.raises(pyfab.InvalidArgumentError):
                many.av.set_user_id(77, 1, flags=KEYED)
        else:
            assert reported() == (many.b, True)
            with pytest.raises(pyfab.InvalidArgumentError):
                many.av.set_user_id(many.b, 1, flags=KEYED)
        unknown = reported()
        other = many.under(address, many.a)  # that it could be, and is not
        assert reported() == unknown
        known = many.under(address, many.b)
        if user_id:
            assert reported() == (ADDR_NOTAVAIL, False)
            many.av.set_user_id(known, 0xDEF)
        assert reported() == (0xDEF if user_id else known, False)
        many.av.remove([known, other])
        assert reported() == unknown
        plain = many.av.insert(address)  # tied to no key
        if user_id:
            many.av.set_user_id(plain, 7)
        assert reported() == (7 if user_id else plain, False)


@pytest.mark.slow
@pytest.mark.req("AV-77")
def test_how_many_keys_an_endpoint_takes(many: Many):
    with many.domain.address_vector() as av:
        for number in range(16):
            last = av.insert_auth_key(b"key %d" % number)
        again = av.insert_auth_key(b"key 3")  # the same once more
        with many.domain.endpoint(av) as endpoint:
            av.insert_auth_key(b"one more")
            with pytest.raises(pyfab.InvalidArgumentError, match="at most 16"):
                many.domain.endpoint(av)
            address = many.peer.run(open_there, "last", [], b"key 15", endpoint.address)
            (handle,) = av.insert([address], flags=KEYED, fi_addr=[last])
            endpoint.tsend(b"12345678", handle, tag=1).result(TIMEOUT)
            address = many.peer.run(open_there, "twice", [], b"key 3", endpoint.address)
            (handle,) = av.insert([address], flags=KEYED, fi_addr=[again])
            assert many.peer.run(attempt, "twice", "tsend", b"12345678", 1) is None
            assert endpoint.trecv(np.zeros(8, "u1"), tag=1).result(TIMEOUT).source == handle


@pytest.mark.req("AV-79")
def test_two_keys_where_peers_are_known_by_their_socket_addresses():
    """The called side learns who calls in the handshake, and each key has its own stream there, too."""
    with ExitStack() as stack:
        sides = []
        for _ in range(2):
            domain = stack.enter_context(pyfab.Domain("tcp", addr_format="sockaddr_in", av_auth_keys=True))
            av = stack.enter_context(domain.address_vector())
            keys = [av.insert_auth_key(key) for key in (A, B)]
            sides.append((domain, av, keys, stack.enter_context(domain.endpoint(av))))
        (here, av, keys, endpoint), (_, other_av, other_keys, other) = sides
        handles = av.insert([other.address] * 2, flags=KEYED, fi_addr=list(keys))
        there = other_av.insert([endpoint.address] * 2, flags=KEYED, fi_addr=list(other_keys))
        memory = [np.zeros(8), np.zeros(8)]
        regions = [
            stack.enter_context(here.register(array, pyfab.Access.REMOTE, auth_key=key))
            for array, key in zip(memory, (A, B), strict=True)
        ]
        for number in (1, 0):
            other.write(np.ones(8), there[number], regions[number].remote).result(TIMEOUT)
            assert memory[number].all()
            refused = failure(
                lambda number=number: other.write(np.ones(8), there[1 - number], regions[number].remote)
            )
            assert isinstance(refused, REFUSED)
            endpoint.tsend(b"12345678", handles[number], tag=number).result(TIMEOUT)
            landing = np.zeros(8, "u1")
            assert other.trecv(landing, tag=number).result(TIMEOUT).source == there[number]
