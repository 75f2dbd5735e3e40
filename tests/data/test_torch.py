"""PyTorch's own loaders over a store, and the library's: the same samples in the same order, whoever reads them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, ShardedStore
from samples import COUNTS, shard, whole

torch = pytest.importorskip("torch")

TOTAL = sum(COUNTS)
HALVES = (150, TOTAL - 150)
JOB = Path(__file__).parent / "torch_job.py"


def labels_of(loader: Any) -> list[int]:
    """Those of all batches, whose other fields must belong to them."""
    expected = whole(TOTAL)
    seen: list[int] = []
    for batch in loader:
        labels = batch["label"].tolist()
        np.testing.assert_array_equal(batch["image"].numpy(), expected["image"][labels])
        values, offsets = batch["tokens"]
        assert offsets.dtype == torch.int32
        for place, label in enumerate(labels):
            np.testing.assert_array_equal(
                values[offsets[place] : offsets[place + 1]], expected["tokens"][label]
            )
        seen += labels
    return seen


def loads_with_workers(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedDataset, ShardedLoader
    from torch.utils.data import DataLoader

    with ShardedStore(group, shard(group.rank, HALVES)) as store:
        dataset = ShardedDataset(store)
        order = GlobalShuffle(TOTAL, 16, seed=3, rank=group.rank, size=group.size)
        expected = np.concatenate(list(order)).tolist()
        for workers, context in ((0, None), (2, "fork"), (1, "spawn"), (1, "forkserver")):
            order = GlobalShuffle(TOTAL, 16, seed=3, rank=group.rank, size=group.size)
            loader = DataLoader(
                dataset, batch_sampler=order, num_workers=workers, multiprocessing_context=context
            )
            assert labels_of(loader) == expected, context
        for settings in ({}, {"copy": False}, {"depth": 0}):
            order = GlobalShuffle(TOTAL, 16, seed=3, rank=group.rank, size=group.size)
            loader = ShardedLoader(store, order, **settings)
            assert labels_of(loader) == expected
            assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_the_order_does_not_depend_on_who_loads(links):
    pyfab.spawn(loads_with_workers, 2, links=links, timeout=100)


def works_as_a_data_set(group: pyfab.Group) -> None:
    from pyfab.torch import Sample, Samples, ShardedDataset
    from torch.utils.data import DataLoader, Subset, default_collate, random_split

    expected = whole(TOTAL)
    with ShardedStore(group, shard(group.rank)) as store:
        dataset = ShardedDataset(store)
        assert len(dataset) == TOTAL
        sample = dataset[7]
        assert isinstance(sample, Sample) and set(sample) == set(expected)
        assert sample["label"] == 7 and torch.equal(sample["tokens"], torch.from_numpy(expected["tokens"][7]))
        assert dataset[-1]["label"] == TOTAL - 1
        with pytest.raises(IndexError):
            dataset[TOTAL]

        samples = dataset.__getitems__([4, 9, 4])
        assert isinstance(samples, Samples) and [s["label"].item() for s in samples] == [4, 9, 4]
        assert [s["label"].item() for s in samples[1:]] == [9, 4]
        batch = default_collate(samples)
        assert batch["image"].data_ptr() == samples.batch["image"].ctypes.data  # not copied
        mixed = default_collate([dataset[3], samples[1]])
        assert mixed["label"].tolist() == [3, 9]
        np.testing.assert_array_equal(
            mixed["tokens"][0], np.concatenate([expected["tokens"][i] for i in (3, 9)])
        )

        part, _ = random_split(Subset(dataset, range(50, 90)), [30, 10])
        labels = [label for batch in DataLoader(part, batch_size=7) for label in batch["label"].tolist()]
        assert len(labels) == 30 and set(labels) <= set(range(50, 90))
        own = DataLoader(dataset, batch_size=3, collate_fn=lambda batch: [s["label"].item() for s in batch])
        assert next(iter(own)) == [0, 1, 2]
        changed = ShardedDataset(store, transform=lambda s: (s["image"].float() / 255, s["label"]))
        image, label = next(iter(DataLoader(changed, batch_size=5)))
        assert image.dtype == torch.float32 and label.tolist() == [0, 1, 2, 3, 4]


def test_it_is_a_data_set_like_others():
    pyfab.spawn(works_as_a_data_set, 4, links="shm+tcp", timeout=100)


def test_a_transform_gets_each_sample_as_tensors_of_its_own():
    from pyfab.torch import Sample, ShardedDataset
    from torch.utils.data import DataLoader

    kinds = {
        "weight": np.arange(TOTAL) / 2,
        "row": np.arange(TOTAL * 3, dtype=np.float32).reshape(TOTAL, 3),
        "one": np.arange(TOTAL, dtype=np.uint8).reshape(TOTAL, 1),
    }
    fields = whole(TOTAL) | kinds
    asked = np.arange(TOTAL)[::-1]
    seen = []

    def transform(sample: Sample) -> Any:
        number = int(sample["label"])
        seen.append(number)
        for name, values in fields.items():
            first = sample[name]
            again = sample[name]
            np.testing.assert_array_equal(first.numpy(), values[number])
            assert first is not again and torch.equal(first, again) and first.dtype == again.dtype
            if first.is_floating_point():
                first.mul_(torch.ones((), requires_grad=True, dtype=first.dtype))
            if first.dim():
                assert first.data_ptr() == again.data_ptr()
                first.unsqueeze_(0)
                assert sample[name].shape == again.shape == values[number].shape
        with pytest.raises(KeyError):
            sample["nothing"]
        if number == 3:
            copy = pickle.loads(pickle.dumps(sample))
            assert set(copy) == set(fields) and not copy.samples._rows and copy["label"] == 3
        return sample["row"], sample["label"]

    with pyfab.Group(0, 1, domain="shm") as group, ShardedStore(group, fields) as store:
        dataset = ShardedDataset(store, transform=transform)
        batches = list(DataLoader(dataset, batch_sampler=[asked[:100], asked[100:], [3]]))
        assert seen == [*asked, 3]
        np.testing.assert_array_equal(np.concatenate([row for row, _ in batches[:2]]), kinds["row"][::-1])
        assert torch.cat([label for _, label in batches[:2]]).tolist() == asked.tolist()
        assert dataset[5][1] == 5 and dataset.__getitems__([]) == []


def test_training_frameworks_find_set_epoch_where_they_look_for_it():
    """Lightning: at `sampler` of the loader, and at `sampler` of its batch sampler."""
    from pyfab.torch import ShardedDataset, ShardedLoader
    from torch.utils.data import DataLoader

    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"x": np.arange(40)}) as store,
    ):
        order = GlobalShuffle(store, 8)
        for loader in (ShardedLoader(store, order), DataLoader(ShardedDataset(store), batch_sampler=order)):
            assert loader.batch_sampler.sampler is order
            parts = []
            for epoch in range(2):
                loader.batch_sampler.sampler.set_epoch(epoch)
                parts.append(next(iter(loader))["x"].tolist())
            assert parts == [order.order(0, 8, epoch).tolist() for epoch in range(2)]


ODD: dict[str, Any] = {
    "time": np.array(["2024-01-01"] * 4, "M8[s]"),
    "text": np.array(["a"] * 4),
    "swapped": np.arange(4, dtype=">i4"),
}


def takes_what_torch_takes(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedDataset, ShardedLoader
    from torch.utils.data import DataLoader

    good = {"x": np.arange(4, dtype="f4"), "u": np.arange(4, dtype="u2"), "b": np.ones(4, bool)}
    with ShardedStore(group, good | ODD) as store:
        for make in (ShardedDataset, lambda store, **o: ShardedLoader(store, [[0, 1]], **o)):
            with pytest.raises(pyfab.InvalidArgumentError) as told:
                make(store)
            assert not any(repr(name) in str(told.value) for name in good)
            for name in ODD:
                assert f"{name!r} is {ODD[name].dtype}" in str(told.value)
            with pytest.raises(pyfab.InvalidArgumentError, match="'time' is datetime64"):
                make(store, fields=["x", "time"])
            with pytest.raises(pyfab.InvalidArgumentError, match="one or more of 'x', 'u', 'b', 'time'"):
                make(store, fields=["y"])
        dataset = ShardedDataset(store, fields=list(good))
        for workers in (0, 1):
            batch = next(iter(DataLoader(dataset, batch_size=3, num_workers=workers)))
            assert list(batch) == list(good) and batch["x"].tolist() == [0, 1, 2]
        (batch,) = ShardedLoader(store, [[2, 3]], fields=["u"])
        assert batch["u"].tolist() == [2, 3]


def test_fields_that_torch_has_no_tensors_of_are_named_and_left_out():
    pyfab.spawn(takes_what_torch_takes, 1, links="shm", timeout=60)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_page_locked_memory_without_a_gpu_warns():
    from pyfab.torch import ShardedLoader

    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"x": np.arange(4)}) as store,
    ):
        for copy in (True, False):
            with pytest.warns(RuntimeWarning, match="torch finds no GPU") as told:
                loader = ShardedLoader(store, [[0, 1], [2, 3]], pin_memory=True, copy=copy)
            assert told[0].filename == __file__
            assert [batch["x"].tolist() for batch in loader] == [[0, 1], [2, 3]]
            list(ShardedLoader(store, [[0]], pin_memory=False))


def is_shared(samples: Any) -> list[Any]:
    batch = torch.utils.data.default_collate(samples)
    address = samples.batch["label"].ctypes.data
    return [batch["label"].is_shared(), batch["label"].data_ptr() == address, batch["tokens"][0].is_shared()]


def sends_shared_memory(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedDataset
    from torch.utils.data import DataLoader

    with ShardedStore(group, shard(group.rank, HALVES)) as store:
        loader = DataLoader(ShardedDataset(store), batch_size=8, num_workers=1, collate_fn=is_shared)
        assert next(iter(loader)) == [True, True, True]
        empty = DataLoader(ShardedDataset(store), batch_sampler=[[0, 11, 22]], num_workers=1)
        batch = next(iter(empty))  # whose tokens are all empty
        assert batch["tokens"][0].shape == (0,) and batch["tokens"][1].tolist() == [0, 0, 0, 0]


def test_workers_send_the_memory_they_read_to():
    pyfab.spawn(sends_shared_memory, 2, links="shm", timeout=100)


def resumes_stateful(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    with ShardedStore(group, shard(group.rank, HALVES)) as store:
        for workers in (0, 2):
            order = GlobalShuffle(TOTAL, 16, seed=3, rank=group.rank, size=group.size)
            loader = StatefulDataLoader(ShardedDataset(store), batch_sampler=order, num_workers=workers)
            expected = np.concatenate(
                list(GlobalShuffle(TOTAL, 16, seed=3, rank=group.rank, size=group.size))
            )
            iterator = iter(loader)
            seen = [next(iterator)["label"] for _ in range(2)]
            state = loader.state_dict()
            order = GlobalShuffle(TOTAL, 16, seed=0, rank=group.rank, size=group.size)
            resumed = StatefulDataLoader(ShardedDataset(store), batch_sampler=order, num_workers=workers)
            resumed.load_state_dict(state)
            seen += [batch["label"] for batch in resumed]
            np.testing.assert_array_equal(torch.cat(seen), expected)


def test_the_stateful_loader_of_torchdata_resumes_it():
    pytest.importorskip("torchdata.stateful_dataloader")
    pyfab.spawn(resumes_stateful, 2, links="shm", timeout=100)


def torchrun(size: int, *arguments: str) -> str:
    """What the job printed."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(JOB), *arguments),
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYFAB_", "RANK", "WORLD"))
    }
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_torchrun_with_workers_for_three_epochs(tmp_path):
    torchrun(2, "epochs", str(tmp_path))
    ranks = [json.loads((tmp_path / f"epochs-{rank}").read_text()) for rank in range(2)]
    for epoch in range(3):
        seen = ranks[0][epoch] + ranks[1][epoch]
        assert sorted(seen) == list(range(400))
        assert ranks[0][epoch] != ranks[0][(epoch + 1) % 3]


def test_training_goes_on_from_a_checkpoint(tmp_path):
    torchrun(2, "train", str(tmp_path / "whole"), "6", "0")
    torchrun(2, "train", str(tmp_path / "part"), "6", "9")  # stops after 9 steps
    torchrun(2, "train", str(tmp_path / "part"), "6", "0")
    whole_run, part_run = (json.loads((tmp_path / f"{name}.log").read_text()) for name in ("whole", "part"))
    assert [step["labels"] for step in part_run] == [step["labels"] for step in whole_run]
    losses = [step["loss"] for step in whole_run]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    np.testing.assert_allclose([step["loss"] for step in part_run], losses, rtol=1e-4)


def test_a_checkpoint_that_cannot_be_written_leaves_the_former_one(tmp_path):
    """Ranks of a job that is run again read it meanwhile."""
    from torch_job import example

    place = tmp_path / "digits.pt"
    module = example()
    module.replace(place, lambda path: path.write_text("former"))

    def fails(path: Path) -> None:
        path.write_text("ha")
        assert place.read_text() == "former"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        module.replace(place, fails)
    assert place.read_text() == "former" and list(tmp_path.iterdir()) == [place]


def meets_through_a_process_group(group: pyfab.Group, place: str) -> list[list[int]]:
    from torch import distributed

    with pytest.raises(pyfab.InvalidArgumentError, match="init_process_group"):
        pyfab.Group.from_torch()
    distributed.init_process_group("gloo", init_method=place, rank=2 - group.rank, world_size=3)
    try:
        some = distributed.new_group([0, 2])
        with pyfab.Group.from_torch(domain="shm") as everyone:
            told = [everyone.allgather(group.rank)]
        if group.rank == 1:
            with pytest.raises(pyfab.InvalidArgumentError, match="no member"):
                pyfab.Group.from_torch(some)
        else:
            with pyfab.Group.from_torch(some, "shm") as two:
                told.append(two.allgather(group.rank))
        group.barrier()
        return told
    finally:
        distributed.destroy_process_group()


def test_processes_of_torch_distributed_are_a_group(tmp_path):
    told = pyfab.spawn(meets_through_a_process_group, 3, f"file://{tmp_path}/store", links="shm", timeout=100)
    assert told == [[[2, 1, 0], [2, 0]], [[2, 1, 0]], [[2, 1, 0], [2, 0]]]


@pytest.mark.parametrize("named", [True, False])
def test_tensors_of_types_that_numpy_lacks_are_memory(named, monkeypatch):
    if named:
        bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        bfloat16 = np.dtype("V2")
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    ones = torch.ones(2, 3, dtype=torch.bfloat16)
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        region = domain.register(tensor, pyfab.Access.ALL)
        peer = endpoint.av.insert(endpoint.address)
        assert region.remote.dtype == bfloat16 and region.remote.shape == (2, 3)
        there = torch.zeros(2, 3, dtype=torch.bfloat16)
        endpoint.get(there, peer, region.remote)
        assert torch.equal(there, tensor)
        endpoint.put(ones, peer, region.remote)
        assert torch.equal(tensor, ones)
        small = domain.register(torch.zeros(4, dtype=torch.float8_e4m3fn), pyfab.Access.ALL)
        assert small.nbytes == 4
    with pyfab.Group(0, 1, domain="shm") as group, group.window(tensor) as window:
        assert window[0].dtype == bfloat16
        window[0][0] = window.local[1]
        if named:
            window[0].accumulate(np.full((2, 3), 2, bfloat16)).result(10)
            assert (tensor == 3).all()
            assert (window[0].fetch_add(1, (0, 0)).result(10)) == 3
