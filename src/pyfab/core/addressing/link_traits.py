"""What a link can do, by its provider: the address of a peer tells no more of its links than their names."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LinkTraits", "by_latency", "provider_of", "traits_of"]


class LinkTraits(NamedTuple):
    """What holds for all links of a provider.

    within_node: the link ends where the node ends. by_device: a device moves bytes between the memories of two hosts, without a
    library at the target. by_processors: only processors store, so updates are atomic with their own instructions.
    called_by_socket: peers call at the address of a socket.
    """

    within_node: bool = False
    by_device: bool = False
    by_processors: bool = False
    called_by_socket: bool = False


# By how soon a small put arrives: by memory, by a device, by messages that the target carries out.
_TRAITS = {
    "shm": LinkTraits(within_node=True, by_processors=True),
    "verbs": LinkTraits(by_device=True),
    "tcp": LinkTraits(by_processors=True, called_by_socket=True),
}


def provider_of(link: str) -> str:
    """Of a link as specs or as addresses and reports name it: "tcp" of "tcp:eth0" and of "tcp.0"."""
    return link.partition(":")[0].partition(".")[0]


def traits_of(link: str) -> LinkTraits:
    """Of a provider that is not known here, as a later version may have one: nothing."""
    return _TRAITS.get(provider_of(link), LinkTraits())


def by_latency(link: str) -> int:
    """A lower number means that a small put arrives sooner."""
    provider = provider_of(link)
    return list(_TRAITS).index(provider) if provider in _TRAITS else len(_TRAITS)
