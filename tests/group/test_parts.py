"""Parts of dynamic windows that come and go, and types of other packages in memory that others map or attach."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyfab
import pytest


def coming_and_going(group: pyfab.Group) -> None:
    """What a peer has detached leaves nothing here, but what was started on it is still flushed."""
    other = 1 - group.rank
    with group.window(dynamic=True) as window:
        first = None
        arrays = []
        for turn in range(20):
            window.attach(np.full(100, turn), "part")
            group.barrier()
            part = window.parts(other)["part"]
            assert window.parts(other)["part"] is part
            assert part[50] == turn
            arrays.append(weakref.ref(part))
            first = first or part
            del part
            group.barrier()
            window.detach("part")
        gc.collect()
        assert [array() for array in arrays] == [first] + [None] * 19
        group.barrier()
        first.put(7, 0)
        del first
        with pytest.raises(pyfab.KeyRejectedError):
            window.flush(other, 10)
        group.barrier()


def test_parts_that_were_detached_are_forgotten() -> None:
    pyfab.spawn(coming_and_going, 2, links="shm", timeout=60)


def narrow_floats(group: pyfab.Group) -> None:
    import ml_dtypes

    other = 1 - group.rank
    dtype = np.dtype(ml_dtypes.bfloat16)
    values = np.arange(6).reshape(2, 3).astype(dtype)
    with group.window(shape=(2, 3), dtype=dtype) as window, group.window(dynamic=True) as parts:
        theirs = window.shared(other)
        assert theirs.dtype == dtype == window[other].dtype
        theirs[...] = values + dtype.type(other)
        part = np.zeros((2, 3), dtype)
        parts.attach(part, "part")
        window.fence()
        assert (window.local == values + dtype.type(group.rank)).all()
        found = parts.parts(other)["part"]
        assert found.dtype == dtype
        found[...] = values
        found.accumulate(values).result(10)
        window.fence()
        assert (part == values + values).all() and (found[1] == part[1]).all()


def test_types_of_other_packages_are_mapped_and_attached() -> None:
    pytest.importorskip("ml_dtypes")
    pyfab.spawn(narrow_floats, 2, links="shm", timeout=60)
