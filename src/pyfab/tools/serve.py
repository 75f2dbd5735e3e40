"""``pyfab serve``: whoever may connect reads arrays in .npy files, straight from the mapped files.

Clients ask for names over a small protocol (`pyfab.meeting.channel`) on the given address:

    {"op": "list"}               → {"arrays": {name: {"shape": [...], "dtype": "..."}}}
    {"op": "open", "name": name} → {"address": ..., "region": ...}, both base64, or {"error": "..."}

Then they read one-sidedly: over shared memory on the same node, and over tcp at the same host address from elsewhere. Nobody
can write.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.core.region import MemoryRegion
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.addresses import join_address, listen, open_to
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header, shown
from pyfab.meeting.interruption import told_to_stop

SERVICE = "pyfab serve"
"""What callers prove the token for."""

_PATIENCE = 10.0  # seconds that a client has for each message


class ArrayServer:
    """Serves read-only arrays until it is closed; the work is done by threads.

    `arrays` maps names to .npy files, `address` is ``host:port`` with port 0 for any. Clients must prove the token, on the data
    links too: without one $PYFAB_TOKEN, or else a random one, which this user's processes on this host find by themselves.
    Raises ValueError for files that cannot be served and for an empty token, OSError for an address that cannot be listened on.
    """

    def __init__(
        self, arrays: Mapping[str, Path], address: str = "127.0.0.1:0", token: str | None = None
    ) -> None:
        tokens.stated(token)  # an empty one is refused before anything is opened
        self.arrays: dict[str, NDArray[Any]] = {name: _mapped(path) for name, path in arrays.items()}
        self._regions: dict[str, MemoryRegion] = {}
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(listen(address))
            self.host, port = listener.getsockname()[:2]  # the numeric address, and the port that was chosen
            self.address = join_address(self.host, port)
            self.token = tokens.for_server(token)
            undo.callback(self.token.withdraw)
            key = tokens.data_key(self.token.secret)
            domain = undo.enter_context(Domain("shm+tcp", tcp_listen=self.host, auth_key=key))
            self._endpoint = undo.enter_context(domain.endpoint())
            for name, array in self.arrays.items():
                self._regions[name] = undo.enter_context(domain.register(array, Access.REMOTE_READ))
            acceptor = Acceptor(listener, self.token, SERVICE, self._talk)
            acceptor.start()
            undo.callback(acceptor.close)
            self._resources = undo.pop_all()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Name → {"shape": (...), "dtype": "..."}."""
        return {n: {"shape": a.shape, "dtype": str(a.dtype)} for n, a in self.arrays.items()}

    def close(self) -> None:
        """Stops; reads that are going on fail."""
        self._resources.close()

    def __enter__(self) -> ArrayServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _talk(self, channel: Channel) -> None:
        """Serves one client."""
        while True:
            request, _ = channel.receive(Deadline(_PATIENCE))
            channel.send(self._answer(request), deadline=Deadline(_PATIENCE))

    def _answer(self, request: Header) -> Header:
        operation, name = request.get("op"), request.get("name")
        if operation == "list":
            return {"arrays": self.describe()}
        if operation != "open":
            return {"error": f"the server knows no operation {shown(operation)}"}
        if not isinstance(name, str) or name not in self._regions:
            return {"error": f"there is no array {shown(name)}; there are {', '.join(self.arrays)}"}
        region = self._regions[name].remote.to_bytes()
        encoded = {"address": self._endpoint.address, "region": region}
        return {key: base64.b64encode(value).decode() for key, value in encoded.items()}


def serve(arrays: Mapping[str, Path], address: str, token: str | None, *, as_json: bool = False) -> None:
    """Serves until SIGINT or SIGTERM; prints what it serves and where, and the token if it has made that itself."""
    with told_to_stop() as stop, ArrayServer(arrays, address, token) as server:
        whom = open_to(server.host, server.token)
        made = {"token": server.token.secret} if server.token.name else {}
        if as_json:
            told = {"serving": server.address, "open_to": whom, "arrays": server.describe(), **made}
            print(json.dumps(told), flush=True)  # one line: a reader need not wait for the end
        else:
            for name, array in server.arrays.items():
                print(f"{name}: {array.shape} {array.dtype}, {array.nbytes:,} bytes")
            if made:
                print(tokens.announced(server.token.secret))
            print(f"serving on {server.address} to {whom}", flush=True)
        stop.wait()
    if not as_json:
        print("stopped")


def _mapped(path: Path) -> NDArray[Any]:
    with path.open("rb") as stream:
        if stream.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise ValueError(f"{path} is no .npy file")  # NumPy would take it for a pickle
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no .npy file that can be mapped: {error}") from None
    if not isinstance(array, np.memmap) or array.nbytes == 0:
        raise ValueError(f"{path} holds no elements to serve")
    if not array.flags.c_contiguous:
        raise ValueError(f"{path} is stored in Fortran order; save numpy.ascontiguousarray(array) instead")
    return array
