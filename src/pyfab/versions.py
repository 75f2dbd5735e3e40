"""The version of each format whose bytes leave a process: what is sent, shared, or stored.

docs/versions.md says what each covers and what may mix.
"""

from __future__ import annotations

from pyfab import _core

__all__ = ["REGISTRATION", "SAMPLER_STATE", "SHUFFLE", "formats"]

REGISTRATION = 1
"""`Registration.to_bytes`, the digit behind the magic."""
SAMPLER_STATE = 1
"""`state_dict` of samplers and loaders. 0 are those that do not tell their format."""
SHUFFLE: int = _core.versions["shuffle"]
"""The permutations that a shuffle draws from. States of samplers name it."""


def formats() -> dict[str, int]:
    """The version of each format, those of the core and those of Python."""
    return {**_core.versions, "registration": REGISTRATION, "state of a sampler": SAMPLER_STATE}
