"""Actors of Ray meet in the key-value store of their cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import OperationTimeout

_NAMESPACE = b"pyfab"


class KeyValueStore:
    """The store of the Ray cluster, with ``set``, ``get`` and ``wait``, for the meeting of one name. Needs `ray.init`."""

    def __init__(self, name: str) -> None:
        try:
            from ray.experimental import internal_kv
        except ImportError as missing:
            raise ImportError("actors of Ray meet with the package ray: pip install ray") from missing
        self._kv: Any = internal_kv
        self._name = name

    def _key(self, key: str) -> bytes:
        return f"{self._name}/{key}".encode()

    def set(self, key: str, value: bytes) -> None:
        """Sets a value, also over a former one."""
        self._kv._internal_kv_put(self._key(key), value, overwrite=True, namespace=_NAMESPACE)

    def set_once(self, key: str, value: bytes) -> bytes:
        """Sets a value if there is none, and returns the one that is there."""
        self._kv._internal_kv_put(self._key(key), value, overwrite=False, namespace=_NAMESPACE)
        return self.get(key)

    def get(self, key: str) -> bytes:
        """The value, or b"" if there is none."""
        return self._kv._internal_kv_get(self._key(key), namespace=_NAMESPACE) or b""

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Waits until all of these keys are there."""
        deadline = Deadline(timeout.total_seconds())
        looks = Looks(deadline)
        for key in keys:
            while not self._kv._internal_kv_exists(self._key(key), namespace=_NAMESPACE):
                if deadline.over:
                    raise OperationTimeout(f"{key} did not come")
                looks.pause()


def links_of_this_node() -> dict[str, Any]:
    """What a domain opens so that actors on other nodes reach it: shared memory, and tcp at the address that Ray uses."""
    import ray

    return {"spec": "shm+tcp", "tcp_listen": ray.util.get_node_ip_address()}
