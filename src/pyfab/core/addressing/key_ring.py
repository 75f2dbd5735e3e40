"""How the authorization key of a domain is replaced."""

from __future__ import annotations

from typing import Any

from pyfab import _core
from pyfab.core.buffers import auth_key_of

__all__ = ["KeyRing"]


class KeyRing:
    """The authorization keys of a domain, as `Domain.auth_keys`. It replaces a key while programs run.

    There are three steps: `add` the new key, `use` it, `remove` the former one. All domains that have the key take a step before
    any of them takes the next one. So no call is refused meanwhile. Regions and grants stay as they are.
    `Group.replace_auth_key` takes these steps. Keys of an address vector are not replaced: open another endpoint for them.

    Safe from any thread. A thread that opens an endpoint meanwhile may have to wait. InvalidArgumentError says what is wrong;
    after an error nothing has changed.
    """

    def __init__(self, core: _core.DomainCore) -> None:
        self._core = core

    def __len__(self) -> int:
        """How many keys peers may have in place of each other; 0: peers need none."""
        return self._core.auth_key_count

    def add(self, key: bytes, *, former: bytes | None = None) -> None:
        """From now on, peers that have `key` are served like peers that have `former` (None: the domain's key).

        An endpoint has at most 16 keys; the added ones count.
        """
        self._add(key, former)

    def _add(self, key: bytes, former: bytes | None) -> bool:
        # Whether nobody could call with it before.
        return self._core.add_auth_key(_given(key), auth_key_of(former))

    def use(self, key: bytes) -> None:
        """From now on, this domain proves `key` when it calls a peer. It must have the key: by `add`, or from before."""
        self._core.use_auth_key(_given(key))

    def remove(self, key: bytes, *, end_streams: bool = False) -> None:
        """From now on, no peer can call with `key`. The key in use cannot be removed.

        end_streams: True ends every connection that was proven with `key`, also those of peers that have another key by now.
        Outstanding operations on it fail with PeerLostError, and peers that have a valid key connect again. Messages that are on
        their way over shared memory are lost, even if they count as sent. Peers of the same user on this node can still reach
        memory that they reached before, as they can reach all memory of this process. False: connections go on until they end.
        """
        self._core.remove_auth_key(_given(key), bool(end_streams))


def _given(key: Any) -> bytes:
    return auth_key_of(b"" if key is None else key)
