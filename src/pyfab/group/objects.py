"""Small objects as bytes, for exchange between members of one group."""

from __future__ import annotations

import json
import pickle
from typing import Any

_JSON_ATOMS = (type(None), bool, int, float, str)


def encode(obj: Any) -> bytes:
    """JSON if that gives back the same object, else a pickle."""
    if _same_after_json(obj):
        return b"j" + json.dumps(obj).encode()
    return b"p" + pickle.dumps(obj, protocol=5)


def decode(data: bytes) -> Any:
    """The inverse of `encode`. The bytes must come from the same program and user: a pickle can run code."""
    return json.loads(data[1:]) if data[:1] == b"j" else pickle.loads(data[1:])


def _same_after_json(obj: Any, depth: int = 20) -> bool:
    kind = type(obj)
    if kind in _JSON_ATOMS:
        return True
    if depth == 0:
        return False
    if kind is list:
        return all(_same_after_json(item, depth - 1) for item in obj)
    if kind is dict:
        return all(type(key) is str and _same_after_json(value, depth - 1) for key, value in obj.items())
    return False
