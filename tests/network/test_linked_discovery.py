"""What a link spec stands for on a machine with several network cards, and how the environment has a say in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

import pyfab
import pytest
from netns import Bench
from pyfab import Caps, EPType

NICS = ["lo", "r0", "r1", "r2"]


@pytest.fixture(scope="module")
def machine():
    """A process on a machine with three network cards besides its loopback."""
    with Bench(nodes=1, rails=3) as bench, bench.node(0).peer("shm") as peer:
        yield peer


@contextlib.contextmanager
def environment(variables):
    former = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


def specs(_target, provider=None, variables=(), **hints):
    """Of what is found; or the name of the error, and its message."""
    try:
        with environment(dict(variables)):
            return [info.spec for info in pyfab.getinfo(provider, **hints)]
    except pyfab.FabricError as error:
        return error.name, str(error)


def opened(_target, spec=None, variables=(), **settings):
    try:
        with environment(dict(variables)), pyfab.Domain(spec, **settings) as domain:
            return domain.info.spec
    except pyfab.FabricError as error:
        return error.name, str(error)


@pytest.mark.req("LNX-1")
def test_links_are_offered_where_the_variable_names_them(machine):
    usual = machine.run(specs)
    assert usual == ["shm", *(f"tcp:{nic}" for nic in NICS)]
    assert machine.run(specs, None, {"FI_LNX_PROV_LINKS": "shm+tcp:r1"}) == ["shm+tcp:r1", *usual]
    assert machine.run(specs, "lnx", {"FI_LNX_PROV_LINKS": "shm+tcp:r1"}) == ["shm+tcp:r1"]
    assert machine.run(opened, None, {"FI_LNX_PROV_LINKS": "shm+tcp:r1"}) == "shm+tcp:r1"
    name, text = machine.run(specs, "lnx")
    assert name == "FI_ENODATA"
    assert "FI_LNX_PROV_LINKS" in text


@pytest.mark.req("LNX-2", "LNX-7")
@pytest.mark.parametrize(
    "spec, stands_for",
    [
        ("shm", ["shm"]),
        ("tcp", [f"tcp:{nic}" for nic in NICS]),
        ("shm+tcp", [f"shm+tcp:{nic}" for nic in NICS]),
        ("tcp+shm", [f"tcp:{nic}+shm" for nic in NICS]),
        ("shm+tcp:r1", ["shm+tcp:r1"]),
        ("shm+tcp:r0,r1", ["shm+tcp:r0,r1"]),
        ("tcp:r2,r0", ["tcp:r2,r0"]),
        ("shm+tcp:r0|shm+tcp:r2", ["shm+tcp:r0", "shm+tcp:r2"]),
        (" shm + tcp : r1 , r0\t|\ttcp : r2 \n", ["shm+tcp:r1,r0", "tcp:r2"]),
    ],
)
def test_what_a_spec_stands_for(machine, spec, stands_for):
    """Named devices go together; otherwise every combination of one device per provider; always in the same order."""
    assert machine.run(specs, spec) == machine.run(specs, spec) == stands_for
    assert machine.run(specs, "lnx", {"FI_LNX_PROV_LINKS": spec}) == stands_for
    for found in stands_for:
        assert machine.run(opened, found) == found
    assert machine.run(opened, spec) == stands_for[0]


BAD = [
    ("+", "+"),
    ("shm+", "shm+"),
    ("+shm", "+shm"),
    ("shm++tcp", "shm++tcp"),
    ("tcp | shm+", "shm+"),
    ("shm|", "shm|"),
    ("|shm", "|shm"),
    ("shm||tcp", "shm||tcp"),
    ("shm,tcp", "shm,tcp"),
    ("shm+tcp:", "tcp:"),
    (":r0", ":r0"),
    ("tcp:r0,", "tcp:r0,"),
    ("tcp:,r0", "tcp:,r0"),
    ("tcp:r0,,r1", "tcp:r0,,r1"),
    ("shm+shm", "shm"),
    ("tcp:r0+shm+tcp:r1", "tcp"),
    ("tcp:r1,r0,r1", "r1"),
    ("shm+nosuch", "nosuch"),
    ("shm+mylnx", "mylnx"),
    ("shm;tcp", "shm;tcp"),
    ("tcp:r9", "r9"),
    ("shm+tcp:r0|shm+tcp:eth99", "eth99"),
    ("sh m", "sh m"),
]


@pytest.mark.req("LNX-3")
def test_bad_specs_are_refused_and_name_the_bad_part(machine):
    assert len(BAD) >= 20
    for spec, part in BAD:
        for name, text in (
            machine.run(specs, spec),
            machine.run(opened, spec),
            machine.run(specs, None, {"FI_LNX_PROV_LINKS": spec}),
            machine.run(opened, None, {"FI_LNX_PROV_LINKS": spec}),
        ):
            assert name == "FI_EINVAL", spec
            assert f'"{part}"' in text, (spec, text)


def discovered_twice(_target, spec):
    with environment({"FI_LNX_PROV_LINKS": spec}):
        found = [[info.spec for info in pyfab.getinfo()] for _ in range(2)]
        return found, os.environ["FI_LNX_PROV_LINKS"]


@pytest.mark.req("LNX-3")
def test_discovery_leaves_the_variable_alone(machine):
    spec = " shm + tcp:r0 , r1 | tcp : r2 "
    (first, second), left = machine.run(discovered_twice, spec)
    assert first == second
    assert left == spec


@pytest.mark.req("LNX-4")
def test_a_link_holds_no_link(machine):
    for spec in ("shm+lnx", "lnx+tcp", "lnx:r0", "shm|lnx"):
        name, text = machine.run(specs, spec)
        assert name == "FI_EINVAL"
        assert "a link cannot hold a link" in text
        assert '"lnx' in text
    _, text = machine.run(specs, "shm+mylnx")  # only the name itself is refused
    assert "unknown provider" in text


def two_domains(_target):
    with (
        environment({"FI_LNX_PROV_LINKS": "tcp:r1+shm"}),
        pyfab.Domain() as one,
        pyfab.Domain("shm+tcp:r0") as two,
    ):
        os.environ["FI_LNX_PROV_LINKS"] = "shm+tcp:r2"
        with pyfab.Domain() as three:
            return [domain.info.spec for domain in (one, two, three)]


@pytest.mark.req("LNX-5")
def test_domains_of_one_process_have_links_of_their_own(machine):
    """A spec comes before the variable, and the variable is read anew each time."""
    assert machine.run(two_domains) == ["tcp:r1+shm", "shm+tcp:r0", "shm+tcp:r2"]


@pytest.mark.req("LNX-8")
def test_a_provider_that_finds_nothing_yields_no_link():
    with Bench(nodes=1, rails=1) as bench, bench.node(0).peer("shm") as peer:
        node = bench.node(0)
        node.link_down(0)
        name, text = peer.run(specs, "shm+tcp:r0")
        assert name == "FI_ENODATA"
        assert "r0 is down" in text
        assert peer.run(specs, "shm+tcp:r0|shm") == ["shm"]
        assert peer.run(specs, "shm+tcp") == ["shm+tcp:lo"]
        node._space.call("ip", "link", "set", "lo", "down")
        name, text = peer.run(specs, "shm+tcp")
        assert name == "FI_ENODATA"
        assert "tcp" in text
        assert peer.run(opened, "shm+tcp")[0] == "FI_ENODATA"
        # Providers by themselves are found without the links that cannot be.
        assert peer.run(specs, None, {"FI_LNX_PROV_LINKS": "shm+tcp"}) == ["shm"]


def nics(_target, spec):
    return [
        [(nic.name, nic.speed_bits_per_second, nic.state) for nic in info.nics]
        for info in pyfab.getinfo(spec)
    ]


@pytest.mark.req("LNX-9")
def test_entries_tell_of_their_network_devices(machine):
    assert [[name for name, *_ in found] for found in machine.run(nics, "shm+tcp")] == [[nic] for nic in NICS]
    ((one, two),) = machine.run(nics, "shm+tcp:r2,r0")
    assert (one, two) == (("r2", 10**10, "up"), ("r0", 10**10, "up")), "as veth devices tell of themselves"


@pytest.mark.req("LNX-9")
def test_network_devices_are_described_as_sysfs_has_it():
    for info in pyfab.getinfo("shm+tcp"):
        assert info.nic is info.nics[0]
        folder = Path("/sys/class/net", info.nic.name)
        addresses = re.findall(
            r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", str((folder / "device").resolve())
        )
        assert info.nic.pci_address == (addresses[-1] if addresses else "")
        assert info.nic.state == (folder / "operstate").read_text().strip()
        node = folder / "device/numa_node"
        assert info.nic.numa_node == (int(node.read_text()) if node.exists() else -1)
        assert info.nics == pyfab.getinfo(f"tcp:{info.nic.name}")[0].nics, "as the provider itself tells it"


@pytest.mark.req("LNX-11")
def test_only_what_works_is_offered(machine):
    """REMOTE_COMM is what a loopback lacks; other bits that fi_getinfo(3) knows are nobody's."""
    everything = Caps.MSG | Caps.TAGGED | Caps.ATOMIC | Caps.RMA_EVENT | Caps.REMOTE_DATA | Caps.DIRECTED_RECV
    assert machine.run(specs, "shm+tcp", caps=everything) == [f"shm+tcp:{nic}" for nic in NICS]
    assert machine.run(specs, "shm+tcp", caps=Caps.REMOTE_COMM) == [f"shm+tcp:{nic}" for nic in NICS[1:]]
    assert machine.run(specs, "shm+tcp:lo", caps=Caps.REMOTE_COMM)[0] == "FI_ENODATA"
    assert machine.run(opened, "shm+tcp:lo", caps=Caps.REMOTE_COMM)[0] == "FI_EOPNOTSUPP"
    unknown = max(Caps).value << 1  # as shared receive contexts or collectives would have
    assert machine.run(specs, "shm+tcp", caps=unknown)[0] == "FI_ENODATA"


@pytest.mark.req("LNX-12", "LNX-13")
def test_endpoints_are_reliable_and_unconnected(machine):
    """And ask nothing of the program."""
    for kind in (EPType.MSG, EPType.DGRAM):
        for provider in ("shm+tcp", "shm", None):
            assert machine.run(specs, provider, ep_type=kind)[0] == "FI_ENODATA"
    assert machine.run(specs, "shm+tcp", ep_type=EPType.RDM) == machine.run(specs, "shm+tcp")
    assert {(info.ep_type, info.mode) for info in pyfab.getinfo("shm+tcp")} == {(EPType.RDM, 0)}


@pytest.mark.req("LNX-14")
def test_the_number_of_combinations_is_limited():
    with Bench(nodes=1, rails=64) as bench, bench.node(0).peer("shm") as peer:
        name, text = peer.run(specs, "shm+tcp")
        assert name == "FI_E2BIG"
        assert "64" in text
        assert peer.run(opened, "shm+tcp") == "shm+tcp:lo", "opening needs only the first"
        bench.node(0).link_down(63)
        assert len(peer.run(specs, "shm+tcp")) == 64
        many = ",".join(f"r{rail}" for rail in range(63))
        assert peer.run(specs, f"shm+tcp:{many}") == [f"shm+tcp:{many}"]


@pytest.mark.slow
def test_the_commands_show_what_a_machine_has():
    with Bench(nodes=1, rails=2) as bench:
        script = "from pyfab.__main__ import main\nsys.exit(main(sys.argv[1:]))"
        found = json.loads(bench.node(0).run(script, "info", "--provider", "shm+tcp:r0,r1", "--json"))
        assert [entry["links"] for entry in found] == [["shm", "tcp:r0", "tcp:r1"]]
        assert [nic["name"] for nic in found[0]["nics"]] == ["r0", "r1"]
