"""What torchrun starts: epochs with a DataLoader's workers, and the training of the example."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyfab
from pyfab.data import ShardedStore
from pyfab.torch import GlobalShuffle, ShardedDataset
from torch.utils.data import DataLoader


def epochs(group: pyfab.Group, folder: str) -> None:
    numbers = np.arange(200) + 200 * group.rank
    with ShardedStore(group, {"label": numbers, "row": np.repeat(numbers, 30).reshape(200, 30)}) as store:
        order = GlobalShuffle(len(store), 16, seed=1)
        loader = DataLoader(
            ShardedDataset(store), batch_sampler=order, num_workers=2, multiprocessing_context="fork"
        )
        seen = []
        for _ in range(3):
            labels: list[int] = []
            for batch in loader:
                assert (batch["row"] == batch["label"][:, None]).all()
                labels += batch["label"].tolist()
            seen.append(labels)
    Path(folder, f"epochs-{group.rank}").write_text(json.dumps(seen))


def example() -> ModuleType:
    """`examples/train_digits.py`."""
    path = Path(__file__).parents[2] / "examples" / "train_digits.py"
    spec = importlib.util.spec_from_file_location("train_digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    if sys.argv[1] == "epochs":
        with pyfab.Group.from_env("shm+tcp") as group:
            epochs(group, sys.argv[2])
        return
    name, epochs_wanted, steps = sys.argv[2], sys.argv[3], sys.argv[4]
    example().main(
        [
            "--checkpoint",
            f"{name}.pt",
            "--log",
            f"{name}.log",
            "--epochs",
            epochs_wanted,
            "--stop-after",
            steps,
        ]
    )


if __name__ == "__main__":
    main()
