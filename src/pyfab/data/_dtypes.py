"""Names of the dtypes of fields, also of those that NumPy gets from the package ml_dtypes: bfloat16 and kinds of float8."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
from pyfab.core.errors import InvalidArgumentError

NARROW = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Dtypes of ml_dtypes that have the same name in torch."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name. ImportError if it is one of ml_dtypes, which is not installed."""
    if name not in NARROW:
        return np.dtype(name)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise ImportError(f"fields of {name} need ml_dtypes: pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def name_of(dtype: np.dtype[Any]) -> str | None:
    """A name by which `dtype_of` finds the dtype in any process; None if there is none."""
    if dtype.name in NARROW and dtype.type.__module__.startswith("ml_dtypes"):
        return dtype.name
    try:
        return dtype.str if np.dtype(dtype.str) == dtype else None
    except TypeError:
        return None


def without_tensors(given: Any) -> Any:
    """A torch tensor of a dtype that NumPy lacks as an array of the same memory; anything else as it is."""
    name = str(getattr(given, "dtype", "")).removeprefix("torch.")
    torch = sys.modules.get("torch")
    if name not in NARROW or torch is None or not isinstance(given, torch.Tensor):
        return given
    if given.device.type != "cpu":
        raise InvalidArgumentError(
            f"a tensor on {given.device}: a store takes those on the CPU, tensor.cpu()"
        )
    plain = torch.int16 if given.element_size() == 2 else torch.uint8
    return given.detach().view(plain).numpy().view(dtype_of(name))
