"""Checkpoints in the memory of other ranks, which outlive ranks that are killed.

checkpoint = pyfab.checkpoint.Checkpoint(group, state, replicas=1)
checkpoint.save(step)  # copies the state, and goes on in the background

group = group.shrink()  # after a rank has died
with pyfab.checkpoint.recover(group, checkpoint) as recovered:
    step = recovered.read(state)
"""

from __future__ import annotations

from pyfab.checkpoint._checkpoint import Checkpoint
from pyfab.checkpoint._placement import holders
from pyfab.checkpoint._recovery import Recovered, recover
from pyfab.checkpoint._spill import load

__all__ = ["Checkpoint", "Recovered", "holders", "load", "recover"]
