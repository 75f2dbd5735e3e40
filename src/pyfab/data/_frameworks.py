"""What training frameworks do to a batch sampler by default, although it has shared the samples out already."""

from __future__ import annotations

import sys
from typing import Any


class BatchSize(int):
    """A batch size that knows its sampler.

    Lightning replaces a batch sampler by `type(sampler)(a DistributedSampler, batch_size=sampler.batch_size, …)`. The batch size
    tells that call from others, and the sampler that it is about.
    """

    of: Any = None

    @classmethod
    def of_sampler(cls, size: int, sampler: Any) -> BatchSize:
        """The batch size of a sampler."""
        made = cls(size)
        made.of = sampler
        return made


def replaced(n: Any, batch_size: Any) -> Any:
    """The sampler that a framework would replace by one with these arguments; None if none is meant."""
    return batch_size.of if isinstance(batch_size, BatchSize) and shares_out(n) else None


def shares_out(n: Any) -> bool:
    """Whether this is no data set, but a sampler that shares one out, such as torch's DistributedSampler."""
    return hasattr(n, "num_replicas")


def asked_for_all() -> bool:
    """Whether the caller of the caller is Accelerate's BatchSamplerShard, which chooses this process's batches of all."""
    frame = sys._getframe(2)
    return (
        frame.f_globals.get("__name__") == "accelerate.data_loader"
        and type(frame.f_locals.get("self")).__name__ == "BatchSamplerShard"
    )
