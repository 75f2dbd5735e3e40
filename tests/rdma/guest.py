"""Runs a command on a machine with RDMA devices, where there are none: a guest with Linux's software RDMA drivers.

    python tests/rdma/guest.py [--cpus N | --exact] [--memory MIB] [--timeout S] [--memlock KIB] [--share DIR]...
                               [--newer] [--peer SHELLCMD] -- COMMAND...
    python tests/rdma/guest.py [--newer] --prepare

QEMU boots Debian's kernel and emulates its processors, so that no KVM is needed. The guest's files are the host's under a
layer of memory: all can be written and is forgotten, but for what lies in a shared folder, and in that of LLVM_PROFILE_FILE.
COMMAND runs as root, in the caller's directory and with its environment. The guest has

    rxe0   soft-RoCE v2   on PYFAB_GUEST_ADDR
    siw0   soft-iWARP     on PYFAB_GUEST_SIW_ADDR

and reaches nothing outside but the guest of --peer, at PYFAB_GUEST_PEER and PYFAB_GUEST_SIW_PEER. PYFAB_GUEST_RANK is 0 for
COMMAND and 1 for the peer. COMMAND starts when the peer listens, on TCP or for RDMA connections, at the latest after 10 seconds.

The exit status is COMMAND's, or if that is 0 the peer's; 124 after the timeout; 125 where there was no guest or it died.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from guest_kernel import NoGuest, prepare, program, say

INIT = Path(__file__).with_name("guest_init.sh")
TIMED_OUT, NO_GUEST = 124, 125
PEER_GRACE = 10  # seconds that the peer may go on when the command has ended
SIGNS = ("up0", "up1", "ready")  # files by which guests tell of themselves
# Seconds that a guest has to come up, and how often it is tried: now and then a kernel that rewrites its own code while an
# emulated processor runs it dies on the way.
BOOT, BOOTS = 120, 3


def shared(tag: str, folder: Path | str, more: str = "") -> list[str]:
    """QEMU's arguments for a folder that the guest mounts by its tag."""
    path = str(folder).replace(",", ",,")
    return ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}"]


class Guest:
    """A running guest. Its output goes where that of this process goes, the peer's with a mark."""

    def __init__(
        self, rank: int, control: Path, arguments: Sequence[str], cables: Sequence[socket.socket]
    ) -> None:
        self._rank, self._control = rank, control
        self._log, self._up = control / f"log{rank}", control / f"up{rank}"
        command = ["setpriv", "--pdeathsig", "KILL", program("qemu-system-x86_64"), *arguments]
        for number in range(2):
            end = f"socket,fd={cables[number].fileno()}" if cables else f"hubport,hubid={number}"
            mac = f"52:54:00:79:0{number}:0{rank + 1}"
            command += ["-netdev", f"{end},id=net{number}"]
            command += ["-device", f"virtio-net-pci,netdev=net{number},mac={mac},host_mtu=4500,romfile="]
        command += ["-device", "virtio-serial-pci"]
        writers: list[int] = []
        self._readers: list[threading.Thread] = []
        for number, sink in enumerate((sys.stdout.buffer, sys.stderr.buffer), start=1):
            reader, writer = os.pipe()
            writers.append(writer)
            self._readers.append(threading.Thread(target=self._pass_on, args=(reader, sink), daemon=True))
            command += ["-chardev", f"file,id=port{number},path=/dev/fd/{writer}"]
            command += ["-device", f"virtserialport,chardev=port{number},nr={number}"]
        inherited = [*writers, *(cable.fileno() for cable in cables)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=inherited
            )
        for writer in writers:
            os.close(writer)
        for thread in self._readers:
            thread.start()

    def _pass_on(self, reader: int, sink: BinaryIO) -> None:
        with open(reader, "rb") as pipe:
            lines = (b"[peer] " + line for line in pipe) if self._rank else iter(lambda: pipe.read1(), b"")
            for data in lines:
                sink.write(data)
                sink.flush()
        with contextlib.suppress(FileNotFoundError):
            # The other guest does not wait for what one that has ended listens to.
            (self._control / "ready").touch()

    def came_up(self, deadline: float) -> bool:
        """Waits until it runs, has ended or that time has come, and returns whether it has run."""
        while not self._up.exists() and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
                break
        return self._up.exists()

    def wait(self, timeout: float) -> int | None:
        """What the command ended with; None if it runs on after `timeout` seconds."""
        try:
            self._process.wait(max(0, timeout))
        except subprocess.TimeoutExpired:
            return None
        for thread in self._readers:
            thread.join()
        try:
            return int((self._control / f"status{self._rank}").read_text())
        except (FileNotFoundError, ValueError):
            say(f"guest {self._rank} died; its last words:\n{self.last_words()}")
            return NO_GUEST

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-50:])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._readers:
            thread.join()


def script(rank: int, command: Sequence[str]) -> str:
    """What the guest's shell runs: by a child, as the shell itself waits for processes that others leave behind."""
    me, other = rank + 1, 2 - rank
    environment = {
        **os.environ,
        "PYFAB_GUEST_RANK": str(rank),
        "PYFAB_GUEST_ADDR": f"10.79.0.{me}",
        "PYFAB_GUEST_PEER": f"10.79.0.{other}",
        "PYFAB_GUEST_SIW_ADDR": f"10.79.1.{me}",
        "PYFAB_GUEST_SIW_PEER": f"10.79.1.{other}",
    }
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
    return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(words)}\nexit $?\n"


def run(
    command: Sequence[str],
    peer: str | None = None,
    *,
    cpus: int = 2,
    exact: bool = False,
    memory: int = 2048,
    timeout: float = 600,
    share: Sequence[Path | str] = (),
    memlock: str = "unlimited",
    newer: bool = False,
) -> int:
    """Boots a guest, with `peer` two, and returns the exit status that the module describes. Output is streamed.

    exact: the guest has one processor, on which every instruction takes 4 ns by its own clock. memory: MiB of each guest.
    timeout: seconds from when the guests are up. share: folders that the guests really write to. memlock: KiB that a process
    may lock, which soft-iWARP asks root for, too. newer: the kernel of a later Debian, which has tls and no soft-iWARP. Raises
    NoGuest.
    """
    # Programs that count what they reach leave it in this folder.
    counts = [Path(file).parent] if (file := os.environ.get("LLVM_PROFILE_FILE")) else []
    folders = [Path(folder).resolve(strict=True) for folder in (*share, *counts)]
    cache = prepare(newer=newer)
    no_siw = cache / "no-siw"
    if no_siw.exists() and not newer:
        say(f"no siw0: {no_siw.read_text()}")
    processors = 1 if exact else cpus
    with contextlib.ExitStack() as stack:
        control = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdma-guest-")))
        shutil.copy(INIT, control / "init")
        machine = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]
        machine += ["-machine", "q35", "-cpu", "max,la57=off", "-smp", str(processors), "-m", str(memory)]
        machine += ["-accel", "tcg,thread=single" if exact else "tcg,thread=multi"]
        machine += ["-icount", "shift=2"] if exact else []
        machine += ["-kernel", str(cache / "kernel"), "-initrd", str(cache / "initrd")]
        machine += shared("host", "/", ",readonly=on") + shared("control", control)
        for number, folder in enumerate(folders):
            (control / f"share{number}").write_text(str(folder))
            machine += shared(f"share{number}", folder)
        # Without tsc=reliable every look at the clock leaves the emulated code.
        words = "console=ttyS0 quiet panic=-1 mitigations=off audit=0 tsc=reliable no_timer_check"
        words += f" shares={len(folders)} memlock={memlock}"
        words += f" siw={'' if no_siw.exists() else 'y'} peer={'y' if peer else ''}"

        commands = [command, ["sh", "-c", peer]] if peer else [command]
        for rank, what in enumerate(commands):
            (control / f"command{rank}").write_text(script(rank, what))
        for boot in range(1, BOOTS + 1):
            running = stack.enter_context(contextlib.ExitStack())
            cables = [socket.socketpair() for _ in range(2)] if peer else []
            for end in itertools.chain(*cables):
                running.callback(end.close)
            guests: list[Guest] = []
            for rank in range(len(commands)):
                arguments = [*machine, "-append", f"{words} rank={rank}"]
                guests.append(Guest(rank, control, arguments, [cable[rank] for cable in cables]))
                running.callback(guests[-1].close)
            patience = time.monotonic() + (max(BOOT, timeout) if boot == BOOTS else BOOT)
            missing = [started for started in guests if not started.came_up(patience)]
            if not missing or boot == BOOTS:
                break
            say(f"a guest has not come up, and is started anew; its last words:\n{missing[0].last_words()}")
            running.close()
            for name in SIGNS:
                (control / name).unlink(missing_ok=True)

        first, *others = missing[:1] or guests
        status = first.wait(0 if missing else timeout)
        if status is None:
            say(f"ended after {timeout:g} s; the guest's last words:\n{first.last_words()}")
            return TIMED_OUT
        for other in others:
            theirs = other.wait(PEER_GRACE)
            status = status or theirs or 0
        return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="guest.py [OPTION...] -- COMMAND...",
    )
    parser.add_argument("--prepare", action="store_true", help="fetch the kernel anew; run nothing")
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument("--cpus", type=int, default=2, help="of each guest (2)")
    clock.add_argument(
        "--exact", action="store_true", help="one processor that takes 4 ns for every instruction"
    )
    parser.add_argument("--newer", action="store_true", help="the kernel of a later Debian, which has tls")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of each guest (2048)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds for the command, once the guests are up (600)",
    )
    parser.add_argument(
        "--memlock", default="unlimited", metavar="KIB", help="what `ulimit -l` takes (unlimited)"
    )
    parser.add_argument(
        "--share", action="append", default=[], metavar="DIR", help="a folder that is really written to"
    )
    parser.add_argument("--peer", metavar="SHELLCMD", help="boot a second guest that runs this")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, command = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if given.prepare:
            prepare(anew=True, newer=given.newer)
            return 0
        if not command:
            parser.error("give a command after --")
        options = vars(given)
        del options["prepare"]
        return run(command, **options)
    except (NoGuest, OSError) as error:
        say(str(error))
        return NO_GUEST


if __name__ == "__main__":
    sys.exit(main())
