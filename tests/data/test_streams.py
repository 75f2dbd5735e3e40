"""Samples that a store takes piece by piece: all, in kinds that all ranks agree on, in no more memory than it may have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import FieldInfo, Ragged, ShardedStore, _readers, from_parquet, from_samples
from pyfab.data import _streams as streams
from pyfab.data.memory import copies

COUNT = 40


def sample(i: int) -> dict[str, Any]:
    """Fields that change their kind on the way: `t` gets lengths, `v` gets fractions."""
    return {
        "x": np.full((2, 3), i, np.uint8),
        "n": i,
        "t": np.arange(3 if i < 20 else i % 5),
        "v": i if i < 30 else i + 0.5,
        "s": "ab" * (i % 4),
    }


def listed(field: Any) -> list[Any]:
    return [np.asarray(value).tolist() for value in field]


@pytest.mark.parametrize("limit", [None, 0, 1000])
def test_pieces_make_the_same_fields_as_all_at_once(monkeypatch, tmp_path, limit):
    whole = dict(from_samples(map(sample, range(COUNT))))
    monkeypatch.setattr(_readers, "PIECE", 300)
    monkeypatch.setattr(copies, "_BLOCK", 128)
    fields = from_samples(map(sample, range(COUNT)))
    assert isinstance(fields, streams.Reading) and not fields.is_read
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, fields, memory_limit=limit, spill_folder=tmp_path) as store,
    ):
        batch = store.gather(np.arange(COUNT))
        assert not fields.is_read
        held = store.spilled_bytes
        store.verify()
        assert (limit is None) == (held == 0) and (limit != 0 or held == store.nbytes)
    in_pieces = dict(from_samples(map(sample, range(COUNT))))
    for name, values in whole.items():
        for other in (batch[name], in_pieces[name]):
            assert (
                listed(other) == listed(values) == listed([sample(i)[name] for i in range(COUNT)])
                or name == "s"
            )
            assert isinstance(other, Ragged) == isinstance(values, Ragged)
            assert getattr(other, "values", other).dtype == getattr(values, "values", values).dtype
    assert [bytes(text) for text in batch["s"]] == [b"ab" * (i % 4) for i in range(COUNT)]


def test_samples_of_an_iterator_are_read_once():
    fields = from_samples(iter([{"x": 1}]))
    with pyfab.Group(0, 1, domain="shm") as group:
        with ShardedStore(group, fields) as store:
            assert store.gather([0])["x"].tolist() == [1]
        with pytest.raises(pyfab.InvalidArgumentError, match="read already"):
            ShardedStore(group, fields)
        again = from_samples([{"x": 1}])
        again["y"] = np.array([2.0])  # a dict like any other, once it is used as one
        del again["x"]
        with ShardedStore(group, again) as store, ShardedStore(group, again) as second:
            assert [field.name for field in store.fields + second.fields] == ["y", "y"]


def agrees(group: pyfab.Group) -> None:
    lengths = {0: [3, 3], 1: [5], 2: []}[group.rank]
    given = from_samples({"t": np.full(n, 10 * group.rank + i, np.int32)} for i, n in enumerate(lengths))
    with ShardedStore(group, given, replicas=2) as store:
        assert store.fields == (FieldInfo("t", "<i4", (), True),) and store.counts == (2, 1, 0)
        assert listed(store.gather([0, 1, 2])["t"]) == [[0] * 3, [1] * 3, [10] * 5]
        store.verify()
    with pytest.raises(
        pyfab.InvalidArgumentError, match=r"rank 1 gave the fields \('t': ragged int64.*schema="
    ):
        ShardedStore(
            group, from_samples({"t": np.zeros(n, "f4" if group.rank == 0 else "i8")} for n in (1, 2))
        )

    def broken() -> Iterator[dict[str, Any]]:
        yield {"t": 1}
        raise OSError("train-1.tar is cut off")

    with pytest.raises((OSError, pyfab.InvalidArgumentError), match=r"train-1\.tar is cut off"):
        ShardedStore(group, from_samples(broken() if group.rank == 1 else [{"t": 1}]))


@pytest.mark.slow
def test_ranks_agree_on_kinds_that_they_know_from_samples():
    pyfab.spawn(agrees, 3, links="shm", timeout=60)


def peak() -> int:
    """Bytes that this process has had in memory at most since `forget_peak`."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) << 10


def forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the peak of memory is not told: {error}")


def opens(fields: Any, limit: int | None, folder: Path) -> int:
    """How much more memory the process had while it opened a store."""
    with pyfab.Group(0, 1, domain="shm") as group:
        forget_peak()
        before = peak()
        with ShardedStore(group, fields, memory_limit=limit, spill_folder=folder) as store:
            assert store.nbytes >= 64 << 20
            return peak() - before


@pytest.mark.slow
def test_reading_takes_no_more_memory_than_it_may(tmp_path):
    def images() -> Iterator[dict[str, Any]]:
        for i in range(64):
            yield {"image": np.full((1 << 20) + i, i, np.uint8)}

    assert opens(from_samples(images()), 4 << 20, tmp_path) < 24 << 20
    assert opens(from_samples(images()), None, tmp_path) < 88 << 20  # each sample once
    assert opens(lambda: {"image": np.zeros((64, 1 << 20), np.uint8)}, 4 << 20, tmp_path) < 88 << 20


def test_a_row_group_is_read_in_parts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    column = pa.array([rng.bytes(1 << 16) for _ in range(1024)])
    # Pages of a MiB: one page of each column is what pyarrow decodes at a time.
    pq.write_table(
        pa.table({"image": column}), tmp_path / "x.parquet", use_dictionary=False, write_batch_size=16
    )
    del column
    pa.default_memory_pool().release_unused()
    assert opens(from_parquet(tmp_path / "x.parquet"), 4 << 20, tmp_path) < 48 << 20
    assert pa.total_allocated_bytes() < 1 << 20
