"""Trains on handwritten digits, loses a rank, and goes on where it was, without a step that is lost.

    torchrun --nproc-per-node 3 --max-restarts 1 examples/lose_a_rank.py --folder /dev/shm/digits --lose 40

After each step a rank's state goes into the memory of another one. When a rank dies, torchrun tells the others to end, gives them
half a minute, and then starts all of them anew. They use that time to write what they hold, with the state of the lost rank, to a
folder, which the next ones load. The state differs between ranks: each draws its samples by a random generator of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import torch
import torch.distributed as dist
from pyfab.checkpoint import Checkpoint, load, recover


class Training:
    """The model, and all that its next step depends on."""

    def __init__(self, rank: int) -> None:
        with np.load(str(files("pyfab.datasets") / "digits.npz")) as digits:
            self._images = torch.from_numpy(digits["images"].astype(np.float32) / 16)
            self._labels = torch.from_numpy(digits["labels"].astype(np.int64))
        torch.manual_seed(0)  # the same weights on all ranks
        self._network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        self._model = torch.nn.parallel.DistributedDataParallel(self._network)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.5)
        self._random = torch.Generator().manual_seed(rank)
        self.state: dict[str, Any] = {
            "model": self._network.state_dict(),  # the very memory of the weights
            "random": self._random.get_state(),
        }

    def step(self) -> None:
        chosen = torch.randint(len(self._labels), (64,), generator=self._random)
        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._model(self._images[chosen]), self._labels[chosen])
        loss.backward()
        self._optimizer.step()
        self.state["random"].copy_(self._random.get_state())

    def loaded(self) -> None:
        """Goes on from what is in the state."""
        self._random.set_state(self.state["random"])

    def told(self) -> str:
        """How good it is, and whether it is the same as another one."""
        weights = torch.cat([tensor.flatten() for tensor in self.state["model"].values()])
        with torch.no_grad():
            right = (self._network(self._images).argmax(1) == self._labels).float().mean()
        digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
        return f"{100 * right:.1f} % are right, weights {digest[:16]}"


def train(group: pyfab.Group, options: argparse.Namespace) -> bool:
    """Whether it came to the end; if not, what is left of the state is in the folder."""
    to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: to_end.append(number))  # torchrun's, when a rank has died
    training, step = Training(group.rank), 0
    if any(options.folder.glob("*.pyfab")):
        step = load(options.folder, training.state, group.rank)
        training.loaded()
        if group.rank == 0:
            print(f"goes on after step {step}", flush=True)
    group.barrier()  # all have read the files before anybody writes
    checkpoint = Checkpoint(group, training.state)
    try:
        while step < options.steps and not to_end:
            training.step()
            step += 1
            checkpoint.save(step)
            if step == options.lose and group.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.wait()
    except (RuntimeError, pyfab.FabricError) as error:  # of torch, or of pyfab: a rank is gone
        print(f"rank {group.rank}: {type(error).__name__}: {error}")
        to_end.append(0)
    if to_end:
        group = group.shrink()
        with recover(group, checkpoint) as recovered:
            recovered.write(options.folder)
            print(f"rank {group.rank}: step {recovered.version} of ranks {recovered.owners} is written")
        return False
    if group.rank == 0:
        print(training.told())
    checkpoint.close()
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for states when a rank has died")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lose", type=int, help="the step after which rank 1 kills itself, the first time")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    group = pyfab.Group.from_env("shm+tcp")
    # torchrun's store still has what the ranks before wrote there, so these have their own part of it.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size)
    if not train(group, options):
        sys.stdout.flush()
        os._exit(1)  # what torch has under way does not end, as a rank is gone
    group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
