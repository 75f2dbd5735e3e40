"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of `path` at the end of the `with`, unless that raises."""
    target = path.resolve()  # a link stays one
    if target.exists() and not target.is_file():  # nothing takes the place of a device, such as /dev/stdout
        yield path
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
