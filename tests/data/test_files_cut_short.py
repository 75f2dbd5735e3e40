"""Shards that are mapped files, cut short while a store is open: an error that names the field; the process lives."""

from __future__ import annotations

import os

import numpy as np
import pyfab
import pytest
from pyfab.data import ShardedStore

SAMPLES = 64


@pytest.mark.parametrize("row", [8, 20_000])
def test_samples_of_this_process(tmp_path, row):
    path = tmp_path / "x.npy"
    whole = np.arange(SAMPLES * row, dtype=np.uint8).reshape(SAMPLES, row)
    np.save(path, whole)
    labels = np.arange(SAMPLES)
    with (
        pyfab.Domain("tcp:lo") as domain,
        pyfab.Group(0, 1, rendezvous=f"file://{tmp_path}/meeting", domain=domain) as group,
        ShardedStore(group, {"x": np.load(path, mmap_mode="r+"), "label": labels}) as store,
    ):
        assert (store.gather(labels)["x"] == whole).all()
        os.truncate(path, 0)
        with pytest.raises(pyfab.BoundsError, match="'x' of shard 0 from this process"):
            store.gather(labels)
        assert (store.gather(labels, fields=["label"])["label"] == labels).all()
