"""Ranks of torch.distributed meet through their process group."""

from __future__ import annotations

from typing import Any

from pyfab.core.errors import InvalidArgumentError


class ProcessGroup:
    """A process group of torch.distributed as a communicator of a meeting: the default group, or `group`.

    InvalidArgumentError if torch.distributed has none yet, or if this process is no member.
    """

    def __init__(self, group: Any = None) -> None:
        try:
            from torch import distributed
        except ImportError as missing:
            raise ImportError("Group.from_torch needs PyTorch: pip install torch") from missing
        if not (distributed.is_available() and distributed.is_initialized()):
            raise InvalidArgumentError(
                "torch.distributed has no process group yet: call torch.distributed.init_process_group() first"
            )
        self._distributed, self._group = distributed, group
        if self.Get_rank() < 0:
            raise InvalidArgumentError("this process is no member of the process group")

    def Get_rank(self) -> int:
        """The number of this process in the group; -1 outside of it."""
        return int(self._distributed.get_rank(self._group))

    def Get_size(self) -> int:
        """The number of processes."""
        return int(self._distributed.get_world_size(self._group))

    def allgather(self, value: bytes) -> list[bytes]:
        """Everyone's bytes, by rank. The process group's own timeout holds."""
        told: list[Any] = [None] * self.Get_size()
        self._distributed.all_gather_object(told, value, group=self._group)
        return told
