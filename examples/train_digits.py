"""Trains a small network on handwritten digits whose images lie in the memory of all ranks.

    torchrun --nproc-per-node 2 examples/train_digits.py [--epochs 5] [--checkpoint digits.pt]

Run again with the same checkpoint, it goes on with the sample after the last one that was trained on, also with another number of
ranks.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import torch
import torch.distributed as dist
from pyfab.data import ShardedStore
from pyfab.torch import GlobalShuffle, ShardedLoader


def shard_of_digits(rank: int, size: int) -> dict[str, Any]:
    """A rank's part of the UCI digits."""
    with np.load(str(files("pyfab.datasets") / "digits.npz")) as digits:
        images, labels = digits["images"], digits["labels"]
    part = slice(len(images) * rank // size, len(images) * (rank + 1) // size)
    return {"image": images[part].astype(np.float32) / 16, "label": labels[part].astype(np.int64)}


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file beside `path` and renames it: readers find the former file or the new one, never a part of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank in one step")
    parser.add_argument("--checkpoint", type=Path, help="goes on from there, and is written there")
    parser.add_argument("--log", type=Path, help="labels and loss of each step, as JSON")
    parser.add_argument("--stop-after", type=int, default=0, help="steps, for trying the checkpoint")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same weights on all ranks
    dist.init_process_group("gloo")
    with (
        pyfab.Group.from_env("shm+tcp") as group,
        ShardedStore(group, shard_of_digits(group.rank, group.size)) as store,
    ):
        network = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )
        model = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        loader = ShardedLoader(store, GlobalShuffle(store, options.batch, seed=0, drop_last=True))
        if options.checkpoint and options.checkpoint.exists():
            saved = torch.load(options.checkpoint, weights_only=True)
            network.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"], group=group)
        steps = json.loads(options.log.read_text()) if options.log and options.log.exists() else []
        group.barrier()  # rank 0 replaces these files, so all have read them before anybody goes on

        done = 0
        while loader.state_dict()["epoch"] < options.epochs and (done == 0 or done != options.stop_after):
            for batch in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                loss.backward()
                optimizer.step()
                steps.append({"labels": batch["label"].tolist(), "loss": loss.item()})
                done += 1
                if done == options.stop_after:
                    break
            if group.rank == 0:
                print(
                    f"epoch {loader.state_dict()['epoch']}: loss {np.mean([s['loss'] for s in steps[-5:]]):.3f}"
                )
        if group.rank == 0 and options.checkpoint:
            state = {
                "model": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
            }
            replace(options.checkpoint, lambda path: torch.save(state, path))
        if group.rank == 0 and options.log:
            replace(options.log, lambda path: path.write_text(json.dumps(steps)))
        group.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
