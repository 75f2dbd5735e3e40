"""Files that `pyfab serve` and `pyfab.store.StoreServer` show, for fsspec and all that reads by it: zarr, xarray, pandas.

zarr.open_group("pyfab://HOST:PORT/data.zarr", mode="r")
fsspec.open("pyfab://HOST:PORT/folder/table.parquet")

fsspec finds this module by itself. It can only read.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from pathlib import Path
from typing import Any

from pyfab.tools.drafts import draft_of
from pyfab.tools.file_client import FileClient, Part
from pyfab.tools.served import Contents

try:
    from fsspec.asyn import AsyncFileSystem
    from fsspec.callbacks import DEFAULT_CALLBACK
    from fsspec.spec import AbstractBufferedFile
except ImportError as missing:
    raise ImportError("pyfab.fsspec needs fsspec: pip install 'pyfab-rdma[fsspec]'") from missing

__all__ = ["FileSystem"]

_SCHEME = "pyfab://"
_PIECE = 64 << 20  # bytes of a file that is copied to the disk, at once


class FileSystem(AsyncFileSystem):  # type: ignore[misc]
    """What a server at ``host:port`` shows. Paths are names such as "folder/file"; an array has the bytes of its elements.

    token: as of `pyfab fetch`: None for $PYFAB_TOKEN, or else what a server of this user on this host has left. It is a part of
    the file system's pickle. timeout: seconds that the server has for each answer, and for each 16 MiB. The connection is made
    at the first call, and again after it was lost. A file has only bytes of one version: one that is changed while it is open
    raises OSError (ESTALE). Other calls raise what files raise, ConnectionError for a server that is lost or cannot be reached,
    and TimeoutError. Safe from any thread.
    """

    protocol = "pyfab"
    root_marker = ""

    def __init__(
        self, address: str = "", token: str | None = None, timeout: float = 10.0, **options: Any
    ) -> None:
        super().__init__(address=address, token=token, timeout=timeout, **options)
        if not address:
            raise ValueError("no address of a server: write pyfab://HOST:PORT/NAME, or address='HOST:PORT'")
        self.address = address
        self._client = FileClient(address, token, timeout)
        weakref.finalize(self, self._client.close)

    def close(self) -> None:
        """Ends the connection. A later call begins a new one."""
        self._client.close()

    # --- URLs

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        if text.startswith(_SCHEME):
            text = text[len(_SCHEME) :].partition("/")[2]
        return text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        if not path.startswith(_SCHEME):
            return {}
        return {"address": path[len(_SCHEME) :].partition("/")[0]}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"{_SCHEME}{self.address}/{self._strip_protocol(name)}"

    # --- what is there

    def details(self, path: str) -> dict[str, Any]:
        """`info`, for any thread that runs no event loop."""
        name = self._strip_protocol(path)
        return _info(name, self._client.look(name))

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.details, path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path)
        found = await asyncio.to_thread(self._client.look, name)
        if isinstance(found, Contents):
            before = f"{name}/" if name else ""
            infos = [_info(before + each, found.entries[each]) for each in sorted(found.entries)]
        else:
            infos = [_info(name, found)]
        return infos if detail else [info["name"] for info in infos]

    # --- bytes

    async def _read(self, parts: list[Part]) -> list[bytes | OSError]:
        return await asyncio.to_thread(self._client.read, parts)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return _or_raise((await self._read([Part(self._strip_protocol(path), start, end)]))[0])

    async def _cat_ranges(
        self, paths: Any, starts: Any, ends: Any, on_error: str = "return", **_: Any
    ) -> list[bytes | OSError]:
        """Reads all ranges at once: those of one file as one vector of gets. A single start or end counts for all."""
        starts, ends = (
            each if isinstance(each, list | tuple) else [each] * len(paths) for each in (starts, ends)
        )
        names = self._strip_protocol(list(paths))
        found = await self._read([Part(*part) for part in zip(names, starts, ends, strict=True)])
        return found if on_error == "return" else [_or_raise(each) for each in found]

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        await asyncio.to_thread(self._copy_out, self._strip_protocol(rpath), lpath, callback)

    def _copy_out(self, name: str, to: Any, callback: Any) -> None:
        info = self.details(name)
        if info["type"] == "directory":
            Path(to).mkdir(parents=True, exist_ok=True)
            return
        callback.set_size(info["size"])
        with draft_of(Path(to)) as draft, draft.open("wb") as out:
            for start in range(0, info["size"], _PIECE):
                (part,) = self._client.read([Part(name, start, start + _PIECE, info.get("version", ""))])
                callback.relative_update(out.write(_or_raise(part)))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _File:
        if mode != "rb":
            raise OSError(errno.EROFS, "pyfab shows files to be read only", path)
        return _File(self, path, mode, **options)

    async def _refuse(self, *paths: Any, **_: Any) -> None:
        names = " ".join(path for path in paths if isinstance(path, str))
        raise OSError(errno.EROFS, "pyfab shows files to be read only", names)

    _pipe_file = _put_file = _cp_file = _rm_file = _mkdir = _makedirs = _refuse


class _File(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read in blocks, all of one version."""

    _details: dict[str, Any] | None = None

    @property
    def details(self) -> dict[str, Any]:
        if self._details is None:
            self._details = self.fs.details(self.path)
            if self._details["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        return self._details

    def _fetch_range(self, start: int, end: int) -> bytes:
        part = Part(self.path, start, end, self.details.get("version", ""))
        return _or_raise(self.fs._client.read([part])[0])


def _info(name: str, found: dict[str, Any] | Contents) -> dict[str, Any]:
    if isinstance(found, Contents) or not found:
        return {"name": name, "size": 0, "type": "directory"}
    return {**found, "name": name, "type": "file"}


def _or_raise(found: bytes | OSError) -> bytes:
    if isinstance(found, OSError):
        raise found
    return found
