"""The version of each format whose bytes leave a process: what is sent, shared, or stored.

docs/versions.md says what each covers and what may mix.
"""

from __future__ import annotations

from pyfab import _core

__all__ = [
    "CARD",
    "CHECKPOINT_FILE",
    "MEETING",
    "OBJECT",
    "REGISTRATION",
    "SAMPLER_STATE",
    "SEAL",
    "SHUFFLE",
    "WEIGHTS",
    "formats",
]

MEETING = 3
"""The handshake and the frames of meetings and servers over tcp, the digit behind their magic."""
SEAL = 2
"""How what others could read or change is sealed and proven: there, in stores, and where members of a group show something."""
CARD = 4
"""What the ranks of a group tell each other when they meet, and the control windows that they find by it."""
OBJECT = 2
"""The objects that members of a group exchange."""

REGISTRATION = 1
"""`Registration.to_bytes`, the digit behind the magic."""
SAMPLER_STATE = 1
"""`state_dict` of samplers and loaders. 0 are those that do not tell their format."""
SHUFFLE: int = _core.versions["shuffle"]
"""The permutations that a shuffle draws from. States of samplers name it."""
CHECKPOINT_FILE = 1
"""Files of states that a checkpoint spills."""
WEIGHTS = 1
"""What publishers of weights tell their readers, and the headers of their buffers."""


def formats() -> dict[str, int]:
    """The version of each format, those of the core and those of Python."""
    return {
        **_core.versions,
        "registration": REGISTRATION,
        "state of a sampler": SAMPLER_STATE,
        "meeting": MEETING,
        "meeting: seals": SEAL,
        "meeting: cards": CARD,
        "object": OBJECT,
        "weights": WEIGHTS,
        "checkpoint: file": CHECKPOINT_FILE,
    }
