"""The peer's side of these tests: it grants parts of what it exposes."""

from __future__ import annotations

import numpy as np
import pyfab


def give(target, name, peers=None, access=None, until=None, **part):
    """Grants of the exposed array `name`; kept as the latest grant of it."""
    grant = target.kept[name].region.grant(peers, access, until, **part)
    target.kept["grant", name] = grant
    return grant.remote


def revoke(target, name):
    target.kept["grant", name].revoke()


def revoke_and_look(target, name):
    """What the array held when revoke() returned."""
    target.kept["grant", name].revoke()
    return np.array(target.kept[name].array)


def close_region(target, name):
    target.kept[name].region.close()


def is_over(target, name):
    return target.kept["grant", name].revoked


def meet(target, address):
    return target.endpoint.av.insert(address)


class Stranger:
    """Another endpoint, which the peer knows as well, in a domain of its own on this side."""

    def __init__(self, pair) -> None:
        self.domain: pyfab.Domain = pair.open_domain()
        self.endpoint = self.domain.endpoint()
        self.handle = self.endpoint.av.insert(pair.peer.address)
        self.handle_there = pair.peer.run(meet, self.endpoint.address)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.close()
        self.domain.close()
