"""How the authorization key of a domain is replaced."""

from __future__ import annotations

from typing import Any

from pyfab import _core
from pyfab.core.buffers import auth_key_of

__all__ = ["KeyRing"]


class KeyRing:
    """The authorization keys of a domain, as `Domain.auth_keys`: a key is replaced while programs run.

    In three steps, each of which all who have the key take before anybody takes the next one, so that no call is refused
    meanwhile: `add` the new key, `use` it, `remove` the former one. Regions and grants stay what they are. `Group` does all
    that in its `replace_auth_key`. Keys of an address vector are not replaced: open another endpoint for them.

    From any thread. Whoever opens an endpoint meanwhile may have to wait. InvalidArgumentError says what is wrong; after an error
    nothing has changed.
    """

    def __init__(self, core: _core.DomainCore) -> None:
        self._core = core

    def __len__(self) -> int:
        """How many keys peers may have in place of each other; 0: peers need none."""
        return self._core.auth_key_count

    def add(self, key: bytes, *, former: bytes | None = None) -> None:
        """From now on whoever has `key` is served as whoever has `former`; None: the domain's key.

        An endpoint has 16 keys at most, these among them.
        """
        self._add(key, former)

    def _add(self, key: bytes, former: bytes | None) -> bool:
        # Whether nobody could call with it before.
        return self._core.add_auth_key(_given(key), auth_key_of(former))

    def use(self, key: bytes) -> None:
        """From now on this domain shows `key` where it calls, which it has got by `add` or had before."""
        self._core.use_auth_key(_given(key))

    def remove(self, key: bytes, *, end_streams: bool = False) -> None:
        """From now on nobody can call with `key`, which is not the one in use.

        end_streams: every connection that was proven with `key` ends, also those of peers that have another key by now; what is
        outstanding on it fails with PeerLostError, and who has a key connects again. Else they go on until they end. Messages
        that are on their way over shared memory then are lost, though they may count as sent; and peers of the same user on the
        node can still reach memory that they reached before, as they can reach all of this process.
        """
        self._core.remove_auth_key(_given(key), bool(end_streams))


def _given(key: Any) -> bytes:
    return auth_key_of(b"" if key is None else key)
