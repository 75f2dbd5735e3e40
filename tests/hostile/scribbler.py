"""A process of the same user that goes wrong: python scribbler.py PID SEED WRITES [FILE…]

It writes random words over what it can map of the memory files of process PID, and of FILE, and then says how many writes
that were, and how many files the kernel kept it from writing to.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from pathlib import Path

INTERESTING = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
HEAD = 1 << 20
"""Bytes at the beginning of a file, where most of what matters lies."""


def memory_files(pid: int) -> list[str]:
    found: dict[int, str] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:pyfab-" in str(entry.readlink()):
                found.setdefault(entry.stat().st_ino, str(entry))
        except FileNotFoundError:
            continue
    return list(found.values())


def map_all(paths: list[str]) -> tuple[list[mmap.mmap], int]:
    maps, kept = [], 0
    for path in paths:
        try:
            file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError:  # the owner has closed it, and its number may be that of a socket by now
            continue
        try:
            maps.append(mmap.mmap(file, 0))
        except PermissionError:
            kept += 1
        except (ValueError, OSError):  # it has no length yet
            continue
        finally:
            os.close(file)
    return maps, kept


def main() -> None:
    pid, seed, writes = (int(text) for text in sys.argv[1:4])
    chance = random.Random(seed)
    written = 0
    while written < writes:
        maps, kept = map_all([*memory_files(pid), *sys.argv[4:]])
        if not maps:
            sys.exit(f"nothing of process {pid} can be written to")
        for _ in range(min(2000, writes - written)):
            memory = chance.choice(maps)
            size = (
                len(memory)
                if chance.random() < 0.05
                else min(len(memory), chance.choice((4096, 65536, HEAD)))
            )
            at = chance.randrange(size // 8) * 8
            word = chance.choice(INTERESTING) if chance.random() < 0.7 else chance.getrandbits(64)
            width = chance.choice((4, 8))
            memory[at : at + width] = (word % 2 ** (8 * width)).to_bytes(width, "little")
            written += 1
    print(written, kept, flush=True)


if __name__ == "__main__":
    main()
