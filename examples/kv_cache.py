"""A prefill process sends the KV cache of a request to a decode process, layer by layer, while it computes the next layers.

    python examples/kv_cache.py [--links shm] [--layers 32] [--blocks 1252] [--lose 8]

The cache lies in blocks of 16 tokens. The decoder has a pool of such blocks for all its requests, and chooses those of this one,
so a block lies elsewhere there than here. By default these are 32 layers of 1,252 blocks, in all 40,064 blocks of 7,808 bytes, or
313 MB. Every layer goes as one operation with a row for each block, then a notice; the decoder begins with a layer when its
notice has come.

With --lose the decoder kills itself when it has that many layers, and the prefill process is told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from typing import Any

import numpy as np
import pyfab

PREFILL, DECODE = 0, 1
WORDS = 1952
"""Numbers of 4 bytes in a block."""
BLOCK = 4 * WORDS


def compute(layer: int, blocks: int) -> Any:
    """Keys and values of one layer, block by block. No two words of a layer are the same here."""
    first = np.arange(blocks, dtype=np.uint32) * np.uint32(WORDS) + np.uint32(layer << 26)
    return first[:, np.newaxis] + np.arange(WORDS, dtype=np.uint32)


def prefill(meeting: str, options: argparse.Namespace) -> None:
    layers, blocks = options.layers, options.blocks
    cache = np.zeros((layers, blocks, WORDS), np.uint32)
    here = np.random.default_rng(0).permutation(blocks)  # block i of the request is row here[i] of a layer
    with pyfab.Group(PREFILL, 2, meeting, options.links) as group:
        endpoint = group.endpoint
        address, shown, there = group.recv(DECODE)
        decoder = endpoint.av.insert(address)
        pool = pyfab.RemoteRegion.from_bytes(shown)
        rows = there * BLOCK, here * BLOCK, BLOCK  # the same in each layer
        computed, called, moved = [], 0.0, []
        try:
            for layer in range(layers):
                cache[layer, here] = compute(layer, blocks)
                began = time.monotonic()
                moved.append(endpoint.write_many(decoder, pool[layer], cache[layer], *rows))
                moved.append(endpoint.send(b"", decoder, data=layer))  # it comes after the blocks
                computed.append(began)
                called += time.monotonic() - began
            for operation in moved:
                operation.result()
            usable = np.array(group.recv(DECODE))
        except pyfab.PeerLostError as error:
            # The whole cache is still here, and another decoder can have it.
            kind = type(error).__name__
            raise SystemExit(
                f"{layers} layers were not all taken, the decoder is gone: {kind}: {error}"
            ) from error
    print(
        f"{layers * blocks} blocks of {BLOCK} bytes came over {options.links}, all bytes are right; calls took"
        f" {1e6 * called / (layers * blocks):.2f} µs a block; {(usable < computed[-1]).sum()} of {layers} layers were usable"
        f" before the last was computed, that one {1e3 * (usable[-1] - computed[-1]):.1f} ms later"
    )


def decode(meeting: str, options: argparse.Namespace) -> None:
    layers, blocks = options.layers, options.blocks
    with pyfab.Group(DECODE, 2, meeting, options.links) as group:
        endpoint = group.endpoint
        slots = blocks + blocks // 4  # the others belong to other requests
        pool = group.domain.alloc((layers, slots, WORDS), np.uint32)
        pool.fill(0)  # its pages are there, as in a pool that has been used before
        region = group.domain.register(pool, pyfab.Access.REMOTE_WRITE)
        table = np.random.default_rng(1).permutation(slots)[:blocks]
        group.send((endpoint.address, region.remote.to_bytes(), table), PREFILL)
        usable = []
        for expected in range(layers):
            layer = endpoint.recv(np.empty(0, np.uint8)).result(timeout=60).data
            usable.append(time.monotonic())
            assert layer == expected  # messages match in the order of sending
            assert np.array_equal(pool[layer, table], compute(layer, blocks)), f"layer {layer} is damaged"
            if len(usable) == options.lose:
                os.kill(os.getpid(), signal.SIGKILL)
        assert not np.delete(pool, table, axis=1).any(), "blocks of other requests were written"
        group.send(usable, PREFILL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", default="shm+tcp", help="shm, tcp, verbs:mlx5_0, ...")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=1252, help="of each layer")
    parser.add_argument("--lose", type=int, help="layers with which the decoder dies")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = f"file://{folder}/meeting", options
        decoder = multiprocessing.get_context("spawn").Process(target=decode, args=arguments)
        decoder.start()
        try:
            prefill(*arguments)
        finally:
            decoder.join()


if __name__ == "__main__":
    main()
