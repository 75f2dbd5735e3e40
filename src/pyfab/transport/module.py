"""One device of a transport."""

from __future__ import annotations

import itertools
import threading

from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.domain import Domain
from pyfab.core.enums import MRMode
from pyfab.core.region import MemoryRegion
from pyfab.transport.completions import Completions, Here
from pyfab.transport.settings import Limits, Tunables

__all__ = ["MOST_MODULES", "Module"]

MOST_MODULES = 8  # a handle has room for the keys of this many modules


class Module:
    """A domain with an endpoint, whose contexts are given to threads."""

    def __init__(self, number: int, domain: Domain, contexts: int, tunables: Tunables, here: Here) -> None:
        self.number, self.domain = number, domain
        self.endpoint = domain.endpoint(contexts=contexts)
        self.virtual = bool(domain.info.mr_mode & (MRMode.VIRT_ADDR | MRMode.BASIC))
        links = [traits_of(link) for link in domain.info.links]
        self.shared = all(link.within_node for link in links)
        self.direct = all(link.by_device for link in links)
        self.limits = Limits.of(domain.info, tunables)
        self.manual = domain._options.manual_progress
        self.completions = Completions(contexts, here, self.manual)
        self._at_once = tunables.completions_per_read
        self._next = itertools.count()
        self._mine = threading.local()

    def context(self) -> int:
        """The number of the calling thread's context, which it keeps."""
        number: int | None = getattr(self._mine, "number", None)
        if number is None:
            number = self._mine.number = next(self._next) % self.endpoint.contexts
        return number

    def close(self) -> None:
        """Ends memory, its cache, the contexts, the endpoint, its queue and its address vector, in this order."""
        for region in [item for item in self.domain._owned if isinstance(item, MemoryRegion)]:
            region._end()
        self.domain._core.close(True)  # empties the cache, then ends the contexts
        self.endpoint.close()

    def progress(self) -> int:
        """Moves what can be moved without waiting. Returns how many operations have ended in the first context that has any."""
        own = self.context()
        for step in range(self.endpoint.contexts):
            number = (own + step) % self.endpoint.contexts
            if self.manual:
                self.endpoint.context(number).progress()
                self.completions.tell(number, self._at_once)
            ended = self.completions.take_told(number, self._at_once)
            if ended:
                return ended
        return 0
