"""The pictures that notebooks show: well-formed, complete, and with nothing from outside as markup."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pyfab
import pytest
from pyfab.display.pictures import DrawnLink, bytes_text, topology

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: object) -> ElementTree.Element:
    return ElementTree.fromstring(str(picture))


def texts(picture: object) -> list[str]:
    return ["".join(text.itertext()) for text in parsed(picture).iter(f"{SVG}text")]


def test_map_of_regions_in_the_order_of_addresses() -> None:
    with pyfab.Domain("shm") as domain:
        table = np.zeros((100, 8), "f4")
        part = domain.register(table[50:60], pyfab.Access.REMOTE_READ, key=5)
        whole = domain.register(table, pyfab.Access.REMOTE, key=6)
        local = domain.register(table[90:], pyfab.Access.READ)
        said = texts(domain.regions_map())
        assert said[0] == "3 regions in the order of addresses"
        assert domain.stats()["regions"] == 3
        assert repr(domain) == "<Domain shm regions=3>"
        addresses = [text for text in said if text.startswith("0x")]
        assert addresses == [f"{region.address:#x}" for region in (whole, part, local)]
        assert [text for text in said if "key" in text] == [
            "REMOTE_READ, REMOTE_WRITE; key 0x6",
            "REMOTE_READ; key 0x5",
            "READ; key -",
        ]
        assert said.count("overlaps") == 2
        assert "3.12 KiB, (100, 8) float32" in said
        assert str(domain.regions_map()) in domain._repr_html_()
        for region in (part, whole):
            region.close()
        assert str(domain.regions_map()) in domain._repr_html_()
        local.close()
        assert domain.stats()["regions"] == 0
        assert texts(domain.regions_map()) == ["0 regions in the order of addresses"]
        assert "<svg" not in domain._repr_html_()


@pytest.mark.req("MR-90")
def test_map_of_grants() -> None:
    with pyfab.Domain("shm") as domain:
        region = domain.register(np.zeros(100), pyfab.Access.REMOTE)
        plain = parsed(domain.regions_map())
        for i in range(12):
            region[8 * i : 8 * i + 16].grant(access=pyfab.Access.REMOTE_READ)
        said = texts(domain.regions_map())
        assert said[2:12] == [
            "800 B, (100,) float64",
            *(f"grants REMOTE_READ of [{8 * i}, {8 * i + 16}) for whoever has the key" for i in range(8)),
            "and 4 more grants",
        ]
        assert float(parsed(domain.regions_map()).get("height", 0)) > float(plain.get("height", 0))


def test_map_of_many_regions() -> None:
    with pyfab.Domain("shm") as domain:
        memory = np.zeros(1000)
        regions = [domain.register(memory[i : i + 1], pyfab.Access.REMOTE) for i in range(0, 1000, 10)]
        assert texts(domain.regions_map())[-1] == "and 40 more"
        assert "72 B between" in texts(domain.regions_map())
        assert "and 40 more" in repr(domain.regions_map())
        del regions


def test_topology_of_sixteen_ranks_on_three_hosts() -> None:
    hosts = ["a"] * 6 + ["<b>"] * 6 + ["c"] * 4
    links = [
        DrawnLink(x, y, "shm.0" if hosts[x] == hosts[y] else "tcp.0", "how")
        for x in range(16)
        for y in range(16)
        if x != y and {x, y} != {0, 15}
    ]
    picture = topology(hosts, [*links, DrawnLink(0, 15, "-", "no route"), DrawnLink(15, 0, "tcp.0", "how")])
    curves = list(parsed(picture).iter(f"{SVG}path"))
    assert len(curves) == 16 * 15 // 2 + 1  # one where the two directions differ
    assert len({curve.get("stroke") for curve in curves}) == 3
    said = texts(picture)
    assert said[:16] == [str(rank) for rank in range(16)]
    assert set(said[16:]) == {"a", "<b>", "c", "shm.0", "tcp.0", "no link"}
    places = [(circle.get("cx"), circle.get("cy")) for circle in parsed(picture).iter(f"{SVG}circle")]
    assert len(set(places)) == 16
    assert "0 -> 15  -  no route" in repr(picture)


def draw(group: pyfab.Group) -> tuple[str, str]:
    return str(group.topology()), group.links()._repr_html_()


@pytest.mark.slow
def test_topology_of_a_group() -> None:
    drawn = pyfab.spawn(draw, 3, links="shm")
    assert len({picture for picture, _ in drawn}) == 1
    assert len(list(parsed(drawn[0][0]).iter(f"{SVG}path"))) == 3
    for _, page in drawn:
        assert page.count("<path") == 2 and "<table>" in page


@pytest.mark.parametrize(
    "count,text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (10**12, "931 GiB"),
        (2**64, "16 EiB"),
    ],
)
def test_bytes_in_three_digits(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_live_counters_without_a_notebook() -> None:
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        counters = pyfab.live(domain)
        assert counters.look() == []
        me = endpoint.av.insert(endpoint.address)
        with domain.register(np.zeros(4), pyfab.Access.REMOTE) as region:
            endpoint.put(np.ones(4), me, region.remote)
            endpoint.get(np.ones(4), me, region.remote)
        [row] = counters.look()
        assert (row.peer, row.operations, row.outstanding, row.sent, row.received) == (
            me,
            2,
            0,
            "32 B",
            "32 B",
        )
        counters.close()
    counters.look()
    assert "closed" in repr(counters) and "32 B" in counters._repr_html_()
    with pytest.raises(pyfab.InvalidArgumentError, match="interval=0"):
        pyfab.live(domain, interval=0)


def test_what_can_be_opened_is_shown_as_a_table() -> None:
    infos = pyfab.getinfo()
    shown = infos._repr_html_()
    assert shown.count("<tr>") == 1 + len(infos)
    assert "<td>shm</td>" in shown and "<td>tcp:lo</td><td>127.0.0.1</td><td>lo</td>" in shown
    # Only what not all offer is listed: loopback leads to no other host.
    assert "remote_comm" not in shown.split("<td>lo</td>")[1].split("</tr>")[0] and "rma" not in shown
