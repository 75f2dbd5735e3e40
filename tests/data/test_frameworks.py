"""Training frameworks as they are by default: each sample once an epoch, over all ranks, though they share samples out too."""

from __future__ import annotations

import copy
import os
import pickle
import socket
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, ShardedStore

EACH = 48  # samples of a rank; two ranks draw whole batches of 8
BATCH = 8


class Distributed:
    """As much of torch's DistributedSampler as tells what it is."""

    num_replicas, rank = 2, 0

    def __len__(self) -> int:
        return EACH


def test_a_batch_sampler_that_is_made_again_stays_the_same():
    order = GlobalShuffle(100, BATCH, seed=5, rank=0, size=2)
    next(iter(order))
    state = order.state_dict()
    again = type(order)(Distributed(), batch_size=order.batch_size, drop_last=order.drop_last)
    assert again is order and again.state_dict() == state
    other = GlobalShuffle(100, order.batch_size, rank=1, size=2)  # the same number, without that meaning
    assert other is not order and other.rank == 1 and other.seed == 0
    with pytest.raises(pyfab.InvalidArgumentError, match="shares samples out, as GlobalShuffle does"):
        GlobalShuffle(Distributed(), BATCH)
    for copied in (copy.deepcopy(order), pickle.loads(pickle.dumps(order))):
        assert copied is not order and copied.state_dict() == state and copied.batch_size.of is copied


ACCELERATE = """
class BatchSamplerShard:
    def __init__(self, batch_sampler, processes, process):
        self.batch_sampler, self.processes, self.process = batch_sampler, processes, process

    def __len__(self):
        return len(self.batch_sampler) // self.processes

    def __iter__(self):
        first = []
        for number, batch in enumerate(self.batch_sampler):
            first += batch
            if number % self.processes == self.process:
                yield batch
"""


def test_who_takes_the_batches_of_all_ranks_gets_them():
    module = ModuleType("accelerate.data_loader")
    exec(ACCELERATE, module.__dict__)
    for seed in (0, 1):
        seen: list[int] = []
        for rank in range(2):
            order = GlobalShuffle(2 * EACH, BATCH, seed, rank=rank, size=2)
            alone = np.concatenate(list(GlobalShuffle(2 * EACH, BATCH, seed, rank=rank, size=2))).tolist()
            shard = module.BatchSamplerShard(order, 2, rank)
            assert len(shard) == len(order) == 6
            drawn = [number for batch in shard for number in batch]
            assert drawn == alone and order.epoch == 1
            seen += drawn
        assert sorted(seen) == list(range(2 * EACH))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def as_torchrun_does(group: pyfab.Group, port: int, job: Callable[[ShardedStore], Any]) -> Any:
    """What `job` returns in an environment as that of torchrun."""
    os.environ |= {
        "RANK": str(group.rank),
        "LOCAL_RANK": str(group.rank),
        "WORLD_SIZE": str(group.size),
        "LOCAL_WORLD_SIZE": str(group.size),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    labels = np.arange(EACH) + EACH * group.rank
    with ShardedStore(group, {"x": labels.astype(np.float32)[:, None], "label": labels}) as store:
        return job(store)


def assert_each_once(counts: list[list[int]], times: int) -> None:
    seen = Counter(label for labels in counts for label in labels)
    assert seen == dict.fromkeys(range(2 * EACH), times), Counter(seen.values())


def loaders(store: ShardedStore) -> dict[str, Any]:
    from pyfab.torch import ShardedDataset, ShardedLoader
    from torch.utils.data import DataLoader

    return {
        "loader": ShardedLoader(store, GlobalShuffle(store, BATCH)),
        "batch sampler": DataLoader(ShardedDataset(store), batch_sampler=GlobalShuffle(store, BATCH)),
        "data set": DataLoader(ShardedDataset(store), batch_size=BATCH, shuffle=True),
    }


def with_accelerate(store: ShardedStore) -> dict[str, list[int]]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    seen: dict[str, list[int]] = {}
    for name, loader in loaders(store).items():
        prepared = accelerator.prepare(loader)
        assert len(prepared) == 6
        seen[name] = [label for _ in range(2) for batch in prepared for label in batch["label"].tolist()]
    return seen


def with_lightning(store: ShardedStore) -> dict[str, list[int]]:
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained: list[int] = []
            self.checked: list[int] = []

        def training_step(self, batch: Any, _: int) -> Any:
            self.trained += batch["label"].tolist()
            return self.layer(batch["x"]).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            if not self.trainer.sanity_checking:
                self.checked += batch["label"].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    seen: dict[str, list[int]] = {}
    for (name, loader), check in zip(loaders(store).items(), loaders(store).values(), strict=True):
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        model = Model()
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", **quiet)
        trainer.fit(model, loader, check)
        seen[name], seen[f"{name} of the validation"] = model.trained, model.checked
    return seen


def with_transformers(store: ShardedStore) -> dict[str, list[int]]:
    import torch
    from pyfab.torch import ShardedDataset
    from transformers import Trainer, TrainingArguments

    seen: list[int] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any = None, label: Any = None) -> Any:
            seen.extend((label if labels is None else labels).tolist())
            return {"loss": self.layer(x).mean()}

    class Exact(Trainer):
        def get_train_dataloader(self) -> Any:
            return loaders(store)["loader"]

    trained: dict[str, list[int]] = {}
    for name, kind in (("data set", Trainer), ("loader", Exact)):
        seen.clear()
        arguments = TrainingArguments(
            per_device_train_batch_size=BATCH,
            num_train_epochs=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        kind(Model(), arguments, train_dataset=ShardedDataset(store)).train()
        trained[name] = list(seen)
    return trained


@pytest.mark.parametrize(
    "library, job",
    [("accelerate", with_accelerate), ("lightning", with_lightning), ("transformers", with_transformers)],
)
def test_each_sample_once_by_the_defaults_of(library, job, tmp_path, monkeypatch):
    for needed in ("torch", library, "accelerate" if library == "transformers" else library):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    first, second = pyfab.spawn(as_torchrun_does, 2, free_port(), job, links="shm", timeout=120)
    for name in first:
        assert_each_once([first[name], second[name]], 2)
