"""Weights of a model, published by some processes and pulled by others, whole or in other shards.

publisher = pyfab.weights.Publisher(group, model.state_dict())  # the ranks that train
publisher.publish(step)

reader = pyfab.weights.Reader(group)  # all other ranks
version = reader.pull(model.state_dict())
"""

from __future__ import annotations

from pyfab.weights._plan import Plan
from pyfab.weights._publisher import Publisher
from pyfab.weights._reader import Reader
from pyfab.weights._tensors import Shard

__all__ = ["Plan", "Publisher", "Reader", "Shard"]
