"""``pyfab serve``: whoever may connect reads arrays in .npy files, other files and folders straight from the mapped files.

Clients ask for names over a small protocol (`pyfab.meeting.channel`) on the given address:

    {"op": "list"}                 → {"arrays": {name: {"shape": [...], "dtype": "..."}}, "folders": [name, ...]};
                                     as body if this is too long for a header
    {"op": "look", "name": path}   → {"file": entry}, {"folder": true} with {name: entry} as body, or {} if there is nothing
    {"op": "lend", "names": [...]} → {"loan": number, "address": ..., "lent": [{"size", "version", "region"}, ...]}, in place
                                     of what cannot be opened {"error", "errno"}; address and regions are base64
    {"op": "keep"}                 → {}, from time to time while the client reads what it was lent
    {"op": "return", "loan": number} → {"changed": [place among those that were opened, ...]}

Any of them is answered with {"error", "errno"} if it fails, and with {"busy": true} if the server has too much open just now.
What was lent stays until it is returned. Meanwhile the client reads one-sidedly: over shared memory on the same node, and over
tcp at the same host address from elsewhere. Nobody can write.
"""

from __future__ import annotations

import contextlib
import json
import resource
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.core.region import MemoryRegion
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor, most_descriptors
from pyfab.meeting.addresses import join_address, listen, open_to
from pyfab.meeting.channel import Channel
from pyfab.meeting.interruption import told_to_stop
from pyfab.tools.folder import Folder
from pyfab.tools.lending import FILES_OF_LOAN, Lending, Room
from pyfab.tools.served import Contents, Entry, Opened, Served, described, entries_of, look_among

if TYPE_CHECKING:
    from typing_extensions import Self

SERVICE = "pyfab serve"
"""What callers prove the token for."""

_PATIENCE = 10.0  # seconds that a client has for each message
_LOAN = 600.0  # and while it reads what it was lent
_SHARE = 8  # things that are lent to all clients: at two descriptors each, a quarter of those that the process may have


class Server:
    """Shows arrays and files to clients until it is closed; the work is done by threads.

    `address` is ``host:port`` with port 0 for any. Clients must prove the token, on the data links too: without one $PYFAB_TOKEN,
    or else a random one, which this user's processes on this host find by themselves. Raises ValueError for an empty token,
    OSError for an address that cannot be listened on.
    """

    def __init__(self, served: Served, address: str = "127.0.0.1:0", token: str | None = None) -> None:
        tokens.stated(token)  # an empty one is refused before anything is opened
        self._served = served
        self._room = Room(max(FILES_OF_LOAN, most_descriptors() // _SHARE))
        self._lock = threading.Lock()  # guards the two below
        self._channels: set[Channel] = set()
        self._closed = False
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(listen(address))
            self.host, port = listener.getsockname()[:2]  # the numeric address, and the port that was chosen
            self.address = join_address(self.host, port)
            self.token = tokens.for_server(token)
            undo.callback(self.token.withdraw)
            key = tokens.data_key(self.token.secret)
            self._domain = undo.enter_context(Domain("shm+tcp", tcp_listen=self.host, auth_key=key))
            self._endpoint = undo.enter_context(self._domain.endpoint())
            undo.callback(self._hang_up)
            acceptor = Acceptor(listener, self.token, SERVICE, self._talk)
            acceptor.start()
            undo.callback(acceptor.close)
            self._resources = undo.pop_all()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Name → {"shape": (...), "dtype": "..."}."""
        return self._served.describe()

    def folders(self) -> list[str]:
        """Names of folders, below which there are files."""
        return self._served.folders()

    def close(self) -> None:
        """Stops; reads that are going on fail."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _talk(self, channel: Channel) -> None:
        """Serves one client."""
        with self._lock:
            if self._closed:
                return
            self._channels.add(channel)
        try:
            address = self._endpoint.address
            with contextlib.closing(Lending(self._served, self._domain, address, self._room)) as lending:
                while True:
                    request, _ = channel.receive(Deadline(_LOAN if lending.count else _PATIENCE))
                    answer, body = lending.answer(request)
                    channel.send(answer, body, deadline=Deadline(_PATIENCE))
        finally:
            with self._lock:
                self._channels.discard(channel)

    def _hang_up(self) -> None:
        """Ends the connections of all clients, which would otherwise go on asking a server without a domain."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.end()


class ArrayServer(Server):
    """Serves arrays in files, other files and folders, read-only.

    `paths` maps names to them: a .npy file is an array, any other file its bytes, and a folder has all files in it that are
    reached without a symbolic link, as "name/of/file". Raises OSError and ValueError for what cannot be served, and what
    `Server` does.
    """

    def __init__(
        self, paths: Mapping[str, Path], address: str = "127.0.0.1:0", token: str | None = None
    ) -> None:
        tokens.stated(token)
        arrays = {name: path for name, path in paths.items() if path.suffix == ".npy" and not path.is_dir()}
        rest = {name: Folder(path) for name, path in paths.items() if name not in arrays}
        files = _Files({name: _mapped(path) for name, path in arrays.items()}, rest)
        self.arrays = files.arrays
        super().__init__(files, address, token)


class _Files:
    """Arrays that stay, and are registered when they are first asked for; and files and folders by name."""

    def __init__(self, arrays: dict[str, NDArray[Any]], files: dict[str, Folder]) -> None:
        self.arrays, self._files = arrays, files
        self._deepest = max((name.count("/") + 1 for name in files), default=0)  # parts of a name
        self._lock = threading.Lock()
        self._regions: dict[str, MemoryRegion] = {}

    def describe(self) -> dict[str, dict[str, Any]]:
        told = described(self.arrays)
        for name, found in self._roots().items():
            if found:
                told[name] = {"shape": (found["size"],), "dtype": "uint8"}
        return told

    def folders(self) -> list[str]:
        return [name for name, found in self._roots().items() if not found]

    def look(self, path: str) -> Entry | Contents | None:
        within = None if path in self.arrays else self._within(path)
        if within is not None:
            return within[0].look(within[1])
        return look_among(entries_of(self.arrays) | self._roots(), path)

    def open(self, name: str, domain: Domain) -> Opened | None:
        if name in self.arrays:
            with self._lock:
                if name not in self._regions:
                    self._regions[name] = domain.register(self.arrays[name], Access.REMOTE_READ)
                return Opened(self._regions[name], lambda: None)
        within = self._within(name)
        return within[0].open(within[1], domain) if within is not None else None

    def _within(self, path: str) -> tuple[Folder, str] | None:
        """What has the longest name that `path` begins with, and the rest of it."""
        parts = path.split("/")
        for count in range(min(len(parts), self._deepest), 0, -1):
            folder = self._files.get("/".join(parts[:count]))
            if folder is not None:
                return folder, "/".join(parts[count:])
        return None

    def _roots(self) -> dict[str, Entry]:
        """What is told of the files and folders that are there, and can be looked at."""
        found = {}
        for name, folder in self._files.items():
            with contextlib.suppress(OSError):
                entry = folder.entry()
                if entry is not None:
                    found[name] = entry
        return found


def serve(paths: Mapping[str, Path], address: str, token: str | None, *, as_json: bool = False) -> None:
    """Serves until SIGINT or SIGTERM; prints what it serves and where, and the token if it has made that itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # clients have files open here
    with told_to_stop() as stop, ArrayServer(paths, address, token) as server:
        whom = open_to(server.host, server.token)
        made = {"token": server.token.secret} if server.token.name else {}
        if as_json:
            told = {"serving": server.address, "open_to": whom, "arrays": server.describe(), **made}
            told["folders"] = server.folders()
            print(json.dumps(told), flush=True)  # one line: a reader need not wait for the end
        else:
            for name, kind in server.describe().items():
                nbytes = server.arrays[name].nbytes if name in server.arrays else kind["shape"][0]
                print(f"{name}: {kind['shape']} {kind['dtype']}, {nbytes:,} bytes")
            for name in server.folders():
                print(f"{name}: a folder")
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
