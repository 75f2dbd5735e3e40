"""All hostile programs for long, one after the other, and what they gained, which must be nothing.

    python tests/hostile/run.py --seconds 60

Each program has that many seconds against a process of its own. A gain is whatever a program got that it may not have: a place
among peers without the key, the place of another endpoint, a proof of a token that it does not know; and the end of what it
attacked counts as one, too, or that this serves its own peer no longer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attacker
import impostor
import numpy as np
import pyfab
from servers import TOKEN, Server
from test_limits import Endpoint
from test_owners import path_of

HERE = Path(__file__).parent
KEY = b"what strangers do not have"
RATE = 2000
WORDS = 20_000  # in one run of the scribbler

Outcome = tuple[int, int]
"""Attempts, and gains."""


@contextlib.contextmanager
def endpoint(key: bytes | None) -> Iterator[Endpoint]:
    with tempfile.TemporaryDirectory() as folder:
        target = Endpoint(lambda kind, program: Server(kind, "-c", program, folder), key)
        try:
            yield target
        finally:
            target.server.end()


def unserved(target: Endpoint) -> int:
    """1 if a peer with the key is not served."""
    try:
        with target.friend() as put:
            put()
    except pyfab.FabricError as error:
        print(f"its peer: {error}", file=sys.stderr)
        return 1
    return int(target.server.process.poll() is not None)


def flood(kind: str, key: bytes | None) -> Callable[[float], Outcome]:
    def run(seconds: float) -> Outcome:
        with endpoint(key) as target:
            program = subprocess.Popen(
                [sys.executable, str(HERE / "flood.py"), kind, target.address.hex(), str(RATE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert program.stdin
            print("on", file=program.stdin, flush=True)
            trouble, until = 0, time.monotonic() + seconds
            while time.monotonic() < until:
                trouble |= unserved(target)
                time.sleep(seconds / 20)
            said = program.communicate("off\n")[0].split()
            return int(said[-1]), said.count("gained") + trouble

    return run


def claims(seconds: float) -> Outcome:
    """Calls one endpoint under the id of another."""
    attempts = gains = 0
    with endpoint(None) as target, pyfab.Domain("tcp:lo") as domain, domain.endpoint() as peer:
        at, claimed = impostor.Place.of(target.address.hex()), impostor.Place.of(peer.address.hex())
        number, key = impostor.public_key_of(claimed)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for greeting in (
                impostor.hello(claimed, claimed.part, at, number, key),
                impostor.hello(claimed, claimed.part, at),
                impostor.hello(claimed, claimed.part, at, number + 1, key),
            ):
                attempts += 1
                gains += impostor.enter(at, greeting, secrets.token_bytes(96)) is not None
        return attempts, gains + unserved(target)


def tokens(kind: str) -> Callable[[float], Outcome]:
    """Proofs of a wrong token, and odd bytes before and after the right one."""
    commands = {
        "serve": ["serve"],
        "agent": ["agent", "--listen", "127.0.0.1:0"],
        "bench": ["bench", "--listen", "127.0.0.1:0"],
    }

    def run(seconds: float) -> Outcome:
        attempts = gains = 0
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "labels.npy", np.arange(10))
            files = [str(Path(folder) / "labels.npy")] if kind == "serve" else []
            server = Server(kind, "-m", "pyfab", *commands[kind], *files)
            try:
                host, _, port = server.address.rpartition(":")
                attacker.ADDRESS = (host, int(port))
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    wrong = {"nonce": secrets.token_hex(32), "proof": secrets.token_hex(32)}
                    said = attacker.until_closed(attacker.call(), attacker.frame(wrong))
                    gains += b'"proof"' in said
                    attacker.odd_bytes()
                    attempts += 1 + len(attacker.BEFORE_THE_PROOF) + len(attacker.AFTER_THE_PROOF)
                server.use()
            except (AssertionError, OSError, pyfab.FabricError) as error:
                print(f"{kind}: {error}", file=sys.stderr)
                gains += 1
            finally:
                server.end()
        return attempts, gains

    return run


def scribbles(seconds: float) -> Outcome:
    """Random words over all that an owner shares."""
    name = f"scribbled {uuid.uuid4()}"
    with pyfab.Domain("shm") as domain:
        vector = path_of(domain, name)
    written = 0
    until = time.monotonic() + seconds
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(HERE / "owner.py"), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdin and owner.stdout
        assert owner.stdout.readline() == "ready\n"
        while time.monotonic() < until and owner.poll() is None:
            seed = secrets.randbelow(2**32)
            command = [
                sys.executable,
                str(HERE / "scribbler.py"),
                str(owner.pid),
                str(seed),
                str(WORDS),
                str(vector),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                written += int(done.stdout.split()[0])
            else:
                print(f"seed {seed}: {done.stderr}", file=sys.stderr)
        try:
            owner.communicate("\n", timeout=60)
        except subprocess.TimeoutExpired:
            owner.send_signal(signal.SIGABRT)  # it tells where it stands
    if owner.returncode != 0:
        print(f"the owner ended with {owner.returncode}", file=sys.stderr)
    return written, int(owner.returncode != 0)


PROGRAMS: dict[str, Callable[[float], Outcome]] = {
    "calls that say nothing": flood("silent", KEY),
    "calls that begin a handshake": flood("half", KEY),
    "proofs of a wrong key": flood("wrong key", KEY),
    "calls that end at once": flood("closed", KEY),
    "messages that nobody asks for": flood("announcements", None),
    "ids of other endpoints": claims,
    "tokens and odd bytes at serve": tokens("serve"),
    "tokens and odd bytes at agent": tokens("agent"),
    "tokens and odd bytes at bench": tokens("bench"),
    "words over shared memory": scribbles,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of each program")
    options = parser.parse_args()
    os.environ["PYFAB_TOKEN"] = TOKEN
    gained = 0
    print(f"{'program':32} {'attempts':>10} {'gains':>6}")
    for name, program in PROGRAMS.items():
        attempts, gains = program(options.seconds)
        gained += gains
        print(f"{name:32} {attempts:10} {gains:6}", flush=True)
    return int(gained != 0)


if __name__ == "__main__":
    sys.exit(main())
