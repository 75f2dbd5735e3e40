"""Mappings of this process that are made, changed and taken away by the system calls themselves."""

from __future__ import annotations

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


for function in (libc.mmap, libc.mremap):
    function.restype = ctypes.c_void_p


PRIVATE, SHARED, FIXED = mmap.MAP_PRIVATE, mmap.MAP_SHARED, 0x10
MAYMOVE_FIXED, DONTNEED, FREE, REMOVE = 3, 4, 8, 9


def map_memory(length: int, *, at: int = 0, flags: int = PRIVATE, file: int = -1) -> int:
    flags |= (FIXED if at else 0) | (mmap.MAP_ANONYMOUS if file < 0 else 0)
    address = libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(length), 3, flags, file, ctypes.c_long(0))
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


def fill(address: int, length: int, value: int) -> None:
    ctypes.memset(address, value, length)


def unmap(address: int, length: int) -> None:
    assert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length)) == 0


def advise(address: int, length: int, advice: int) -> None:
    assert libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice) == 0


def remap(old: int, length: int, new_length: int, flags: int, to: int) -> int:
    address = libc.mremap(
        ctypes.c_void_p(old), ctypes.c_size_t(length), ctypes.c_size_t(new_length), flags, ctypes.c_void_p(to)
    )
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address
