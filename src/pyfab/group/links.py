"""How bytes go from one rank to the others, as a table and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.errors import FabricError
from pyfab.display.pictures import Drawing, DrawnLink, topology
from pyfab.display.tables import Table
from pyfab.group.communicator import Communicator


class Link(NamedTuple):
    """How bytes go to one peer.

    `path` is "direct" if this process, or a device, moves them to and from the peer's memory. It is "messages" if the peer's
    library does it on request. Over shared memory, `path` is that of the last transfer.
    """

    peer: int
    host: str
    link: str
    path: str
    how: str
    why: str


class Links(Table[Link]):
    """The links of one rank: a table, and in a notebook also a picture."""

    def __init__(self, rank: int, hosts: list[str], links: Iterable[Link]) -> None:
        super().__init__(Link, links, title=f"links of rank {rank}")
        self.rank, self.hosts = rank, hosts

    def drawn(self) -> list[DrawnLink]:
        """The links as `topology` takes them."""
        return [DrawnLink(self.rank, link.peer, link.link, link.how) for link in self]

    def _repr_html_(self) -> str:
        return str(topology(self.hosts, self.drawn())) + super()._repr_html_()


class LinkReports(Communicator):
    """Reports of the ranks of a group about the links between them."""

    _hosts: list[str]

    def links(self) -> Links:
        """The link to each peer, and why it was chosen. Local."""
        self._check()
        return Links(self.rank, self._hosts, map(self._link, self.peers))

    def topology(self, timeout: float | None = -1) -> Drawing:
        """The links between all ranks as a picture (SVG): a line for each pair in the colour of its link. Collective."""
        drawn = self._allgather(self.links().drawn(), timeout, "topology()")
        return topology(self._hosts, itertools.chain(*drawn))

    def _link(self, peer: int) -> Link:
        try:
            link, how, why = self.endpoint.report(self._handles[peer])
        except FabricError as error:
            return Link(peer, self._hosts[peer], "-", "-", "-", str(error))
        return Link(peer, self._hosts[peer], link, path_of(link, how), how, why)


def path_of(link: str, how: str) -> str:
    """`Link.path` for what the endpoint reports: a link, or several rails, and how the bytes go."""
    rails = map(traits_of, link.split("+"))
    direct = how != "ring" and all(rail.within_node or rail.by_device for rail in rails)
    return "direct" if direct else "messages"
