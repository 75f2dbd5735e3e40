"""What somebody finds whose key opens nothing."""

from __future__ import annotations

import numpy as np
from pyfab import AtomicOp, KeyRejectedError
from support import failure


def check_refused(exposed, user, remote):
    """The endpoint of `user`, which knows the peer by its `handle`, reaches nothing of `exposed` through `remote`."""
    content = exposed.content()
    local = np.full(remote.shape, -2, remote.dtype)
    for start in (
        lambda: user.endpoint.write(local, user.handle, remote),
        lambda: user.endpoint.read(local, user.handle, remote),
        lambda: user.endpoint.write(local[:1], user.handle, remote[:1], data=9),
        lambda: user.endpoint.atomic(AtomicOp.SUM, local[:1], user.handle, remote[:1]),
    ):
        assert isinstance(failure(start), KeyRejectedError)
    assert (local == -2).all()
    assert (exposed.content() == content).all()
