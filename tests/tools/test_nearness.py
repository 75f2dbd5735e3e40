"""Which network device lies near, on machines described by a folder that looks like /sys."""

from __future__ import annotations

import dataclasses
import os

import pyfab
import pytest

GPU = "0000:1a:00.0"
DEVICES = {  # where each hangs, and its NUMA node
    "0000:1b:00.0": ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0", 0),  # below the bridge of the GPU
    "0000:15:02.0": ("pci0000:15/0000:15:02.0", 0),  # at the same root
    "0000:3d:00.0": ("pci0000:30/0000:30:00.0/0000:3d:00.0", 0),  # another root of the node
    "0000:9a:00.0": ("pci0000:90/0000:90:01.0/0000:9a:00.0", 1),  # another node
    GPU: ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:1a:00.0", 0),
}


@pytest.fixture
def sysfs(tmp_path):
    """Three nodes: the processors of this process are in node 1, which is nearer to 2 than to 0."""
    mine = ",".join(map(str, os.sched_getaffinity(0)))
    nodes = tmp_path / "devices/system/node"
    for number, cpus, distances in ((0, "4095", "10 30 40"), (1, mine, "30 10 20"), (2, "", "40 20 10")):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(cpus + "\n")
        (nodes / f"node{number}/distance").write_text(distances + "\n")
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for address, (path, node) in DEVICES.items():
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (links / address).symlink_to(folder)
    return str(tmp_path)


def entry(*places):
    """An entry over devices at (PCI address, NUMA node)."""
    nics = tuple(
        pyfab.Nic(
            name=f"nic{number}",
            driver="",
            pci_address=pci,
            numa_node=node,
            speed_bits_per_second=0,
            state="up",
        )
        for number, (pci, node) in enumerate(places)
    )
    return dataclasses.replace(pyfab.getinfo("shm")[0], nics=nics, nic=nics[0] if nics else None)


NEAR, ROOT, NODE, FAR = [entry((address, node)) for address, (_, node) in list(DEVICES.items())[:4]]
NOWHERE, SHM = entry(("", -1)), entry()
BOTH = entry((GPU, 0), ("0000:9a:00.0", 1))


@pytest.mark.req("LNX-9")
def test_near_a_device(sysfs):
    """Fewest bridges first, then other roots by node; what has no place comes last, what has no device first."""
    mixed = [NOWHERE, BOTH, FAR, NODE, SHM, ROOT, NEAR]
    assert pyfab.nearest(mixed, GPU, sysfs=sysfs) == [SHM, NEAR, ROOT, NODE, BOTH, FAR, NOWHERE]
    assert pyfab.nearest(mixed, GPU.upper(), sysfs=sysfs)[1] is NEAR


@pytest.mark.req("LNX-9")
def test_near_the_processors_and_near_a_node(sysfs):
    """Equals stay as they came."""
    mixed = [NODE, NEAR, FAR, NOWHERE]
    assert pyfab.nearest(mixed, sysfs=sysfs) == [FAR, NODE, NEAR, NOWHERE]
    assert pyfab.nearest(mixed, 0, sysfs=sysfs) == [NODE, NEAR, FAR, NOWHERE]
    assert pyfab.nearest(mixed, 2, sysfs=sysfs) == [FAR, NODE, NEAR, NOWHERE]


def test_places_that_are_not_there(sysfs):
    for place in ("0000:ff:00.0", "", "eth0", 7, -1):
        with pytest.raises(pyfab.InvalidArgumentError, match="to="):
            pyfab.nearest([NEAR], place, sysfs=sysfs)


def test_this_machine():
    """Whatever it has, nothing is lost."""
    infos = pyfab.getinfo()
    assert sorted(info.spec for info in pyfab.nearest(infos)) == sorted(info.spec for info in infos)
