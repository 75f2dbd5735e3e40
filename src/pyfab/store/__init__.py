"""A dictionary of arrays and nested values in the memory of a group, which outlives ranks that are killed.

with pyfab.store.Store(group, replicas=1) as store:  # all ranks
    version = store.put("weights", {"w": np.ones(1000), "step": 3})
    store.get("weights")["w"]  # from any rank
    done, version = store.compare_and_set("weights", version, None)

group = group.shrink()  # after a rank has died
store = pyfab.store.recover(group, store)
"""

from __future__ import annotations

from pyfab.store._recovery import recover
from pyfab.store._serving import StoreServer
from pyfab.store._store import Entry, Store, Swap, View

__all__ = ["Entry", "Store", "StoreServer", "Swap", "View", "recover"]
