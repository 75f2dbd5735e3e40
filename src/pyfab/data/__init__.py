"""Data sets in the memory of many processes, and their loaders.

with pyfab.data.ShardedStore(group, {"image": images, "label": labels}) as store:
    batch = store.gather([5, 700_000, 12])  # wherever they lie
"""

from __future__ import annotations

from pyfab.data._arrow import from_arrow, from_parquet
from pyfab.data._engine import Gathered
from pyfab.data._fields import FieldInfo, Ragged
from pyfab.data._images import DecodeImages
from pyfab.data._loader import JaxLoader, Loader
from pyfab.data._metrics import Snapshot
from pyfab.data._mix import Mix
from pyfab.data._readers import from_folder, from_raw, from_samples, from_tar
from pyfab.data._shuffle import GlobalShuffle
from pyfab.data._store import ShardedStore
from pyfab.data.samplers.buckets import LengthBuckets
from pyfab.data.samplers.weighted import WeightedSampler
from pyfab.data.stream.sample_stream import SampleStream

__all__ = [
    "DecodeImages",
    "FieldInfo",
    "Gathered",
    "GlobalShuffle",
    "JaxLoader",
    "LengthBuckets",
    "Loader",
    "Mix",
    "Ragged",
    "SampleStream",
    "ShardedStore",
    "Snapshot",
    "WeightedSampler",
    "from_arrow",
    "from_folder",
    "from_parquet",
    "from_raw",
    "from_samples",
    "from_tar",
]
