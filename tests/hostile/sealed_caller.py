"""A caller: python sealed_caller.py ADDRESS REGION KEY ENCRYPT COUNT

It puts COUNT blocks of one text, one after the other, and says what came of each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pyfab

TEXT = b"what nobody between the hosts shall know. "
BLOCK = 256 * 1024  # bytes


def sealing(encrypt: bool) -> dict[str, Any]:
    kernel = encrypt and "PYFAB_TEST_KERNEL_TLS" in os.environ
    return {"encrypt": encrypt, "tcp_kernel_tls": "on" if kernel else "off"}


def block() -> np.ndarray:
    return np.resize(np.frombuffer(TEXT, np.uint8), BLOCK)


def main(address: str, region: str, key: str, encrypt: str, count: str) -> None:
    remote = pyfab.RemoteRegion.from_bytes(bytes.fromhex(region))
    with (
        pyfab.Domain("tcp:lo", auth_key=key.encode(), peer_deadline=2, **sealing(encrypt == "yes")) as domain,
        domain.endpoint() as endpoint,
    ):
        peer = endpoint.av.insert(bytes.fromhex(address))
        for number in range(int(count)):
            try:
                part = remote[number * BLOCK : (number + 1) * BLOCK]
                endpoint.write(block(), peer, part).result(timeout=20)
                print("ok", flush=True)
            except pyfab.FabricError as error:
                print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
