"""Keys of regions: their size, who chooses them, raw ones, and those of authorization."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from modes import ONE, end_sibling, error_of
from pyfab import Access, MRMode
from support import TIMEOUT

# --- keys


@pytest.mark.req("MR-14")
def test_keys_of_four_bytes(open_pair):
    pair = open_pair(mr_key_size=4)
    assert pair.domain.info.mr_key_size == 4
    with pytest.raises(pyfab.KeyRejectedError, match="4 bytes"):
        pair.register(np.zeros(1), Access.REMOTE, key=2**32)
    exposed = pair.expose(np.zeros(8), key=2**32 - 1)
    pair.put(np.ones(8), exposed.remote)
    assert exposed.content().all()
    assert 0 <= pair.expose(np.zeros(1)).key < 2**32


@pytest.mark.parametrize("size", [0, 3, 9])
def test_keys_have_four_to_eight_bytes(size):
    with pytest.raises(pyfab.InvalidArgumentError):
        pyfab.Domain("shm", mr_key_size=size)


@pytest.mark.req("MR-16", "MR-36")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_the_library_chooses_keys(spec):
    with pyfab.Domain(spec, mr_mode=MRMode.PROV_KEY) as domain:
        regions = [domain.register(np.zeros(1), Access.REMOTE, key=0) for _ in range(1000)]
        assert len({region.key for region in regions}) == 1000
        assert 0 not in {region.key for region in regions}
    with pyfab.Domain(spec, mr_mode=MRMode.PROV_KEY, strict_keys=True) as domain:
        with pytest.raises(pyfab.KeyRejectedError):
            domain.register(np.zeros(1), Access.REMOTE, key=0)
        domain.register(np.zeros(1), Access.REMOTE).close()


@pytest.mark.req("MR-36")
def test_a_key_that_was_asked_for_is_not_the_key(open_pair):
    pair = open_pair(mr_mode=MRMode.PROV_KEY)
    exposed = pair.expose(np.zeros(8), key=7)
    guessed = pair.endpoint.write(np.ones(8), pair.handle, (0, 7))
    assert isinstance(error_of(guessed), pyfab.KeyRejectedError)
    assert not exposed.content().any()
    pair.put(np.ones(8), exposed.remote)


@pytest.mark.slow
@pytest.mark.req("MR-21")
@pytest.mark.parametrize("size", [4, 8])
def test_chosen_keys_do_not_come_back_soon(size):
    recent: dict[int, None] = {}
    with pyfab.Domain("shm", mr_mode=MRMode.PROV_KEY, mr_key_size=size) as domain:
        memory = np.zeros(1)
        for _ in range(10_000):
            with domain.register(memory, Access.REMOTE) as region:
                assert region.key not in recent
                recent[region.key] = None
            if len(recent) > 1000:
                del recent[next(iter(recent))]


@pytest.mark.req("MR-21")
def test_a_key_that_was_chosen_is_stale_once_closed(open_pair):
    pair = open_pair(mr_mode=MRMode.PROV_KEY)
    stale = []
    for _ in range(50):
        exposed = pair.expose(np.zeros(8, np.int64))
        stale.append(exposed.key)
        exposed.close()
    living = pair.expose(np.zeros(8, np.int64))
    for key in stale:
        assert isinstance(error_of(pair.endpoint.write(ONE, pair.handle, (0, key))), pyfab.KeyRejectedError)
    assert not living.content().any()


# --- raw keys


def raw_of(target, name):
    return target.kept[name].region.raw_attr()


@pytest.mark.req("MR-18", "MR-32", "MR-52", "MR-53")
def test_raw_keys_are_mapped_before_use(open_pair):
    pair = open_pair(mr_mode=MRMode.RAW)
    exposed = pair.expose(np.zeros(8, np.int64))
    assert exposed.key == pyfab.KEY_NOTAVAIL
    raw = pair.peer.run(raw_of, exposed.name)
    assert len(raw.key) == pair.domain.info.mr_key_size
    for key in (
        pyfab.KEY_NOTAVAIL,
        *np.frombuffer(raw.key, np.uint64).tolist(),
        *np.frombuffer(raw.key, ">u8").tolist(),
    ):
        unmapped = pair.endpoint.write(ONE, pair.handle, (0, key))
        assert isinstance(error_of(unmapped), pyfab.KeyRejectedError)
    assert not exposed.content().any()
    one, two = pair.domain.map_raw(raw), pair.domain.map_raw(raw)
    assert one != two
    pair.put(ONE, (raw.base_address, one))
    pair.domain.unmap_key(one)
    late = pair.endpoint.write(ONE * 5, pair.handle, (8, one))
    assert isinstance(error_of(late), pyfab.KeyRejectedError)
    pair.put(ONE * 2, (16, two))
    pair.endpoint.write_many(
        pair.handle, (0, two), ONE * 3, np.array([24]), np.array([0]), np.array([8])
    ).result(TIMEOUT)
    assert exposed.content().tolist() == [1, 0, 2, 3, 0, 0, 0, 0]
    for wrong in (one, 1, exposed.key):
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.domain.unmap_key(wrong)
    pair.domain.unmap_key(two)


@pytest.mark.req("MR-50", "MR-51", "MR-52")
@pytest.mark.parametrize(
    "settings", [{}, {"mr_key_size": 4}, {"mr_mode": MRMode.RAW}, {"mr_mode": MRMode.BASIC}], ids=str
)
def test_any_region_has_a_raw_key(open_pair, settings):
    pair = open_pair(**settings)
    size = pair.domain.info.mr_key_size
    with pair.domain.register(np.zeros(8), Access.REMOTE) as region:
        for small in (0, 1, size - 1):
            with pytest.raises(pyfab.TooSmallError) as failure:
                region.raw_attr(small)
            assert failure.value.needed == size
        assert region.raw_attr(size) == region.raw_attr() == region.raw_attr(size + 9)
        assert len(region.raw_attr().key) == size
    exposed = pair.expose(np.zeros(8))
    raw = pair.peer.run(raw_of, exposed.name)
    key = pair.domain.map_raw(raw)
    pair.put(np.ones(8), (raw.base_address, key))
    assert exposed.content().all()
    pair.domain.unmap_key(key)


@pytest.mark.req("MR-54")
@pytest.mark.parametrize("mode", [MRMode.SCALABLE, MRMode.RAW])
def test_a_domain_with_mapped_keys_is_busy(mode):
    domain = pyfab.Domain("shm", mr_mode=mode)
    with domain.register(np.zeros(8), Access.REMOTE) as region:
        key = domain.map_raw(region.raw_attr())
    with pytest.raises(pyfab.BusyError):
        domain.close()
    domain.unmap_key(key)
    domain.close()


@pytest.mark.req("MR-55")
def test_damaged_raw_keys_are_refused(open_pair):
    pair = open_pair(mr_mode=MRMode.RAW)
    exposed = pair.expose(np.zeros(8, np.int64))
    raw = pair.peer.run(raw_of, exposed.name).key
    generator = np.random.default_rng(1)
    for turn in range(10_000):
        damaged = bytearray(raw)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] ^= generator.integers(1, 256)
        damaged = damaged[: generator.integers(len(damaged) + 1)] if turn % 3 == 0 else damaged
        if damaged == raw:
            continue
        try:
            key = pair.domain.map_raw(bytes(damaged))
        except pyfab.InvalidArgumentError:
            continue
        assert len(damaged) < len(raw), "a checksum tells all that is as long as a key"
        assert error_of(pair.endpoint.write(ONE, pair.handle, (0, key)))
        pair.domain.unmap_key(key)
    assert not exposed.content().any()


@pytest.mark.req("MR-56")
def test_raw_keys_take_no_flags():
    with pyfab.Domain("shm") as domain:
        with domain.register(np.zeros(8), Access.REMOTE) as region:
            with pytest.raises(pyfab.BadFlagsError):
                region.raw_attr(flags=1)
            with pytest.raises(pyfab.BadFlagsError):
                domain.map_raw(region.raw_attr(), flags=1)
        domain.close()  # nothing was mapped: with a mapped key it would be busy


# --- keys of authorization


def expose_for(target, auth_key):
    memory = np.zeros(8, np.int64)
    target.kept["for"] = memory, target.domain.register(memory, Access.REMOTE, auth_key=auth_key)
    return target.kept["for"][1].remote


def keyed_endpoint(target, auth_key):
    target.kept["sibling"] = target.domain.endpoint(auth_key=auth_key)
    return target.kept["sibling"].address


def end_for(target):
    memory, region = target.kept.pop("for")
    region.close()
    return memory


@pytest.mark.slow
@pytest.mark.req("MR-68")
@pytest.mark.parametrize("domain_key", [None, b"of the domain"])
def test_a_region_with_a_key_of_its_own(open_pair, domain_key):
    pair = open_pair(**({} if domain_key is None else {"auth_key": domain_key}))
    address = pair.peer.run(keyed_endpoint, b"special")
    remote = pair.peer.run(expose_for, b"special")
    with pair.domain.endpoint(auth_key=b"special") as endpoint:
        endpoint.write(ONE, endpoint.av.insert(address), remote[:1]).result(TIMEOUT)
    ordinary = pair.endpoint.write(ONE * 5, pair.handle, remote[:1])
    assert isinstance(error_of(ordinary), pyfab.KeyRejectedError)
    for key in (None, b"wrong"):
        with pair.domain.endpoint(auth_key=key) as endpoint:
            try:
                error = error_of(endpoint.write(ONE * 5, endpoint.av.insert(address), remote[:1]))
            except pyfab.FabricError as refusal:
                error = refusal
            assert error is not None
    assert pair.peer.run(end_for)[0] == 1
    remote = pair.peer.run(expose_for, b"")  # that of the domain
    pair.put(ONE, remote[:1])
    assert pair.peer.run(end_for)[0] == 1
    pair.peer.run(end_sibling)


@pytest.mark.slow
@pytest.mark.req("MR-68")
def test_keys_of_regions_are_ignored_for_old_programs(open_pair):
    pair = open_pair(api_version=(1, 4))
    remote = pair.peer.run(expose_for, b"special")
    pair.put(ONE, remote[:1])
    assert pair.peer.run(end_for)[0] == 1
