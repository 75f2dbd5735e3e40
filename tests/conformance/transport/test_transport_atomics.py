"""Atomic operations of a transport: each that is advertised works, exactly and on its own bytes."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, AtomicOp, Outcome, Transport
from sides import Sides
from support import TIMEOUT


@pytest.mark.req("WIN-33", "WIN-32", "WIN-37", "WIN-35")
def test_what_is_advertised_works_and_nothing_else(sides: Sides) -> None:
    transport = sides.transport
    values = (3, 5)
    expected = {
        AtomicOp.SUM: 8, AtomicOp.PROD: 15, AtomicOp.MIN: 3, AtomicOp.MAX: 5, AtomicOp.LOR: 1, AtomicOp.LAND: 1,
        AtomicOp.LXOR: 0, AtomicOp.BOR: 7, AtomicOp.BAND: 1, AtomicOp.BXOR: 6, AtomicOp.ATOMIC_READ: 3,
        AtomicOp.ATOMIC_WRITE: 5, AtomicOp.CSWAP: 5, AtomicOp.CSWAP_NE: 3, AtomicOp.CSWAP_LE: 5, AtomicOp.CSWAP_LT: 3,
        AtomicOp.CSWAP_GE: 5, AtomicOp.CSWAP_GT: 3, AtomicOp.MSWAP: 3 & ~3 | 5 & 3,
    }  # fmt: skip
    for op in AtomicOp:
        for dtype in (kind + size for kind in "iuf" for size in "1248"):
            if dtype in ("f1", "f2"):
                continue
            sides.put(np.array(values[0], dtype))
            compare = np.array(3, dtype) if op >= AtomicOp.CSWAP else None
            result = np.zeros((), dtype)
            arguments = (op, values[1], sides.at, sides.handle)
            if dtype in transport.atomic_operations[op]:
                sides.wait(transport.atomic, *arguments, dtype=dtype, result=result, compare=compare)
                found = sides.get(np.zeros((), dtype))
                assert (int(result), int(found)) == (values[0], expected[op]), (op, dtype)
            else:
                with pytest.raises(pyfab.NotSupportedError):
                    transport.atomic(sides.peer, *arguments, dtype=dtype, result=result, compare=compare)


@pytest.mark.req("WIN-41", "WIN-36")
def test_forms_without_a_result_touch_their_bytes_alone(sides: Sides) -> None:
    for dtype in ("i4", "i8"):
        sides.put(np.full(32, 0xAA, np.uint8))
        sides.put(np.array(-5, dtype), 8)
        sides.wait(sides.transport.atomic, AtomicOp.SUM, -7, sides.at + 8, sides.handle, dtype=dtype)
        width = np.dtype(dtype).itemsize
        around = sides.get(np.zeros(32, np.uint8))
        assert around[8 : 8 + width].view(dtype)[0] == -12
        assert (np.delete(around, np.s_[8 : 8 + width]) == 0xAA).all()
        room = np.full(3, 0x5A5A5A5A, dtype)
        told = {"dtype": dtype, "result": room[1:2].reshape(())}
        sides.wait(sides.transport.atomic, AtomicOp.SUM, 0, sides.at + 8, sides.handle, **told)
        assert room.tolist() == [0x5A5A5A5A, -12, 0x5A5A5A5A]


@litmus
@pytest.mark.req("WIN-39")
def test_atomics_and_those_of_the_processor_mix(sides: Sides) -> None:
    assert sides.transport.global_atomics
    try:
        add = ctypes.CDLL("libatomic.so.1").__atomic_fetch_add_8
    except OSError:
        pytest.skip("no libatomic.so.1 (Debian package libatomic1)")
    with Transport("shm") as transport:
        memory = np.zeros(1, np.int64)
        registration = transport.register(memory, Access.REMOTE)
        myself = transport.peer(transport.name)
        turns = rounds(2000)

        def by_processor() -> None:
            for _ in range(turns):
                add(ctypes.c_void_p(memory.ctypes.data), ctypes.c_uint64(1), 5)

        thread = threading.Thread(target=by_processor)
        thread.start()
        for _ in range(turns):
            while (
                transport.atomic(myself, AtomicOp.SUM, 1, registration.address, registration)
                is Outcome.TRY_AGAIN
            ):
                transport.progress()
        thread.join()
        transport.flush(timeout=TIMEOUT)
        assert memory[0] == 2 * turns
