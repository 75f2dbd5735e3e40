"""Runs a command on a machine with RDMA devices, where there are none: a guest with Linux's software RDMA drivers.

    python tests/rdma/guest.py [--cpus N] [--memory MIB] [--timeout S] [--memlock KIB] [--share DIR]...
                               [--peer SHELLCMD] -- COMMAND...
    python tests/rdma/guest.py --prepare

QEMU boots Debian's kernel and emulates its processors, so that no KVM is needed. The guest's files are the host's under a
layer of memory: all can be written and is forgotten, but for what lies in a shared folder. COMMAND runs as root, in the caller's
directory and with its environment. The guest has

    rxe0   soft-RoCE v2   on PYFAB_GUEST_ADDR
    siw0   soft-iWARP     on PYFAB_GUEST_SIW_ADDR

and reaches nothing outside but the guest of --peer, at PYFAB_GUEST_PEER and PYFAB_GUEST_SIW_PEER. PYFAB_GUEST_RANK is 0 for
COMMAND and 1 for the peer. COMMAND starts when the peer listens, on TCP or for RDMA connections, at the latest after 10 seconds.

The exit status is COMMAND's, or if that is 0 the peer's; 124 after the timeout; 125 where there was no guest or it died.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import lzma
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

RECIPE = 1  # another number where the cache has to be made anew
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyfab-guest" / str(RECIPE)

TIMED_OUT, NO_GUEST = 124, 125
PEER_GRACE = 10  # seconds that the peer may go on when the command has ended

# With what they depend on. Nothing else can be loaded in a guest.
MODULES = (
    *("virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay"),
    *("dummy", "veth", "sch_netem"),
    *("crc32_generic", "crc32c_generic", "ib_uverbs", "ib_umad", "rdma_ucm", "rdma_rxe"),
)

# From the initial files: modules, then the host's files under a layer of memory. A failure is a panic, which ends the guest.
BOOT = """#!/bin/sh
set -e
while read module; do insmod "/modules/$module"; done </modules/order
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs memory /memory
mkdir /memory/files /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/files,workdir=/memory/work overlay /root
mount -t tmpfs -o mode=755 run /root/run
mkdir /root/run/guest
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none control /root/run/guest
exec switch_root /root /bin/sh /run/guest/init
"""
APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root")

# From the host's files, with the kernel's command line as variables: rank, peer, siw, shares, memlock.
INIT = """
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr

share=0
while [ $share -lt $shares ]; do
  folder=$(cat /run/guest/share$share)
  mkdir -p "$folder"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap share$share "$folder"
  share=$((share + 1))
done

me=$((rank + 1)) other=$((1 - rank))
echo guest$rank >/proc/sys/kernel/hostname
printf '%s\\n' '127.0.0.1 localhost' '10.79.0.1 guest0' '10.79.0.2 guest1' >/etc/hosts
ip link set lo up
for net in 0 1; do
  ip address add 10.79.$net.$me/24 dev eth$net
  ip link set eth$net up
done
rdma link add rxe0 type rxe netdev eth0
[ -z "$siw" ] || rdma link add siw0 type siw netdev eth1
until grep -qs ffff:0a4f:000$me /sys/class/infiniband/rxe0/ports/1/gids/*; do sleep 0.1; done

listens() { ss -Hltn | grep -q . || rdma resource show cm_id | grep -q LISTEN; }
if [ "$peer" ]; then
  touch /run/guest/up$rank
  until [ -e /run/guest/up$other ]; do sleep 0.1; done
  if [ $rank = 0 ]; then
    until [ -e /run/guest/ready ]; do sleep 0.1; done
  else
    (for tenth in $(seq 100); do ! listens || break; sleep 0.1; done; touch /run/guest/ready) &
  fi
fi

# A port of the host's can be opened once only; a pipe can be opened again as /dev/stdout. All that the command starts ends with
# it, as processes of its own namespace, so that the pipes do.
mkfifo -m 666 /run/out /run/err
cat /run/out >$(echo /dev/vport*p1) & out=$!
cat /run/err >$(echo /dev/vport*p2) & err=$!
ulimit -l $memlock
status=0
unshare --pid --fork --mount-proc sh /run/guest/command$rank </dev/null >/run/out 2>/run/err || status=$?
wait $out $err
echo $status >/run/guest/status$rank
sync
echo b >/proc/sysrq-trigger
"""


class NoGuest(Exception):
    """There can be no guest here; the message says why and what to do."""


# --- what has to be there


def program(name: str) -> str:
    """Its path; empty if it is not there."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") or ""


def missing() -> str:
    """Why there can be no guest here; empty if there can."""
    if os.uname().machine != "x86_64" or not program("apt-get"):
        return "a guest needs Debian on x86-64"
    needed = {"qemu-system-x86": "qemu-system-x86_64", "iproute2": "rdma"}
    absent = [package for package, name in needed.items() if not program(name)]
    busybox = program("busybox")
    if (
        not busybox or b"/ld-linux" in Path(busybox).read_bytes()
    ):  # the guest's first program has no libraries
        absent.append("busybox-static")
    return f"missing here: apt-get install {' '.join(absent)}" if absent else ""


# --- the kernel and its modules, kept in CACHE


def call(*command: str | Path, cwd: Path | None = None, text: str | None = None) -> str:
    """The output of a command; NoGuest with its last words if it fails."""
    done = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise NoGuest("\n".join([f"{shlex.join(map(str, command))} failed:", *words]))
    return done.stdout


def fetch(work: Path, *packages: str) -> None:
    """Downloads Debian packages and unpacks them into work/files."""
    try:
        call("apt-get", "-q", "download", *packages, cwd=work)
    except NoGuest as error:
        raise NoGuest(f"{error}\nIs `apt-get update` needed?") from None
    for package in work.glob("*.deb"):
        call("dpkg", "-x", package, work / "files")
        package.unlink()


def uncompressed(image: bytes) -> bytes:
    """The kernel within a bzImage, which QEMU starts without the slow emulated unpacking; else the image as it is."""
    sectors = image[0x1F1]
    offset, length = (int.from_bytes(image[at : at + 4], "little") for at in (0x248, 0x24C))
    payload = image[(sectors + 1) * 512 + offset :][
        : length - 4
    ]  # its last word is the size of what is packed
    try:
        return lzma.decompress(payload)
    except lzma.LZMAError:
        return image


class Modules:
    """The modules of an unpacked kernel package."""

    def __init__(self, root: Path) -> None:
        (folder,) = (root / "lib/modules").iterdir()
        self.release = folder.name
        self.files = {self._name(path): path for path in folder.rglob("*.ko*")}
        self._builtin = {self._name(Path(line)) for line in (folder / "modules.builtin").read_text().split()}

    @staticmethod
    def _name(path: Path) -> str:
        return path.name.partition(".")[0].replace("-", "_")

    def read(self, name: str) -> bytes:
        content = self.files[name].read_bytes()
        return lzma.decompress(content) if self.files[name].suffix == ".xz" else content

    def order(self, names: Sequence[str]) -> dict[str, bytes]:
        """The modules and all that they need, each after what it needs."""
        ordered: dict[str, bytes] = {}

        def add(name: str) -> None:
            if name in ordered or name in self._builtin:
                return
            if name not in self.files:
                raise NoGuest(f"Debian's kernel {self.release} has no module {name}")
            content = self.read(name)
            needs = re.search(rb"\bdepends=([^\0]*)\0", content)
            for needed in needs[1].decode().split(",") if needs and needs[1] else ():
                add(needed.replace("-", "_"))
            ordered[name] = content

        for name in names:
            add(name)
        return ordered


def build_siw(work: Path, release: str) -> Path:
    """The module siw, which Debian 12's kernel comes without, compiled from Debian's source of that kernel."""
    if not (program("gcc") and program("make")):
        raise NoGuest("compiling siw needs the packages gcc and make")
    say("compiling siw")
    version, flavour = release.rsplit("-", 1)
    series = ".".join(version.split(".")[:2])
    headers = f"linux-headers-{version}"
    fetch(
        work, f"{headers}-{flavour}", f"{headers}-common", f"linux-kbuild-{series}", f"linux-source-{series}"
    )
    inside = f"linux-source-{series}/drivers/infiniband/sw/siw/"
    source = work / "siw"
    source.mkdir()
    with tarfile.open(work / f"files/usr/src/linux-source-{series}.tar.xz", "r|xz") as archive:
        for member in archive:
            if member.name.startswith(inside) and (content := archive.extractfile(member)):
                (source / Path(member.name).name).write_bytes(content.read())
    objects = " ".join(f"{path.stem}.o" for path in source.glob("*.c"))
    (source / "Makefile").write_text(f"obj-m := siw.o\nsiw-y := {objects}\n")
    sources = work / "files/usr/src"
    makefile = sources / f"{headers}-{flavour}/Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{sources}/"))
    call("make", "-C", makefile.parent, f"M={source}", "modules")
    call("strip", "-d", source / "siw.ko")
    return source / "siw.ko"


def make_initrd(work: Path, modules: Mapping[str, bytes]) -> bytes:
    root = work / "initrd"
    for folder in ("bin", "dev", "host", "memory", "modules", "root"):
        (root / folder).mkdir(parents=True)
    for name, content in modules.items():
        (root / "modules" / name).write_bytes(content)
    (root / "modules/order").write_text("".join(f"{name}\n" for name in modules))
    busybox = program("busybox")
    shutil.copy(busybox, root / "bin/busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "init").write_text(BOOT)
    (root / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"], cwd=root, input=names.encode(), capture_output=True
    )
    packed.check_returncode()
    return packed.stdout


def prepare(anew: bool = False) -> Path:
    """The folder with `kernel` and `initrd`; `no-siw`, where it is there, says why there is no siw0."""
    if reason := missing():
        raise NoGuest(reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not anew and (CACHE / "initrd").exists():
            return CACHE
        found = re.search(r"Depends: (linux-image-\S+)", call("apt-cache", "depends", "linux-image-amd64"))
        if not found:
            raise NoGuest("apt knows no linux-image-amd64: is `apt-get update` needed?")
        say(f"preparing {found[1]} in {CACHE}, once")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            work = Path(folder)
            fetch(work, found[1])
            modules = Modules(work / "files")
            names = [*MODULES, "siw"]
            (CACHE / "no-siw").unlink(missing_ok=True)
            if "siw" not in modules.files:
                try:
                    modules.files["siw"] = build_siw(work, modules.release)
                except NoGuest as reason:
                    (CACHE / "no-siw").write_text(str(reason))
                    names.remove("siw")
            (image,) = (work / "files/boot").glob("vmlinuz-*")
            (CACHE / "kernel").write_bytes(uncompressed(image.read_bytes()))
            (work / "ready").write_bytes(make_initrd(work, modules.order(names)))
            (work / "ready").rename(CACHE / "initrd")
    return CACHE


# --- a run


def say(text: str) -> None:
    print(f"guest: {text}", file=sys.stderr, flush=True)


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
        self._log = control / f"log{rank}"
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
        with contextlib.suppress(FileNotFoundError):  # nobody waits for a guest that has ended
            for name in ("up0", "up1", "ready"):
                (self._control / name).touch()

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
    memory: int = 2048,
    timeout: float = 600,
    share: Sequence[Path | str] = (),
    memlock: str = "unlimited",
) -> int:
    """Boots a guest, with `peer` two, and returns the exit status that the module describes. Output is streamed.

    memory: MiB of each guest. timeout: seconds from the start of the guests. share: folders that the guests really write to.
    memlock: KiB that a process may lock, though root may lock all. Raises NoGuest.
    """
    deadline = time.monotonic() + timeout
    folders = [Path(folder).resolve(strict=True) for folder in share]
    cache = prepare()
    no_siw = cache / "no-siw"
    if no_siw.exists():
        say(f"no siw0: {no_siw.read_text()}")
    with contextlib.ExitStack() as stack:
        control = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyfab-guest-")))
        (control / "init").write_text(INIT)
        machine = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]
        machine += ["-machine", "q35", "-cpu", "max,la57=off", "-smp", str(cpus), "-m", str(memory)]
        machine += ["-accel", "tcg,thread=multi"]
        machine += ["-kernel", str(cache / "kernel"), "-initrd", str(cache / "initrd")]
        machine += shared("host", "/", ",readonly=on") + shared("control", control)
        for number, folder in enumerate(folders):
            (control / f"share{number}").write_text(str(folder))
            machine += shared(f"share{number}", folder)
        # Without tsc=reliable every look at the clock leaves the emulated code.
        words = "console=ttyS0 quiet panic=-1 mitigations=off audit=0 tsc=reliable no_timer_check"
        words += f" shares={len(folders)} memlock={memlock}"
        words += f" siw={'' if no_siw.exists() else 'y'} peer={'y' if peer else ''}"

        cables = [socket.socketpair() for _ in range(2)] if peer else []
        for end in itertools.chain(*cables):
            stack.callback(end.close)
        guests: list[Guest] = []
        for rank, what in enumerate([command, ["sh", "-c", peer]] if peer else [command]):
            (control / f"command{rank}").write_text(script(rank, what))
            arguments = [*machine, "-append", f"{words} rank={rank}"]
            guests.append(Guest(rank, control, arguments, [cable[rank] for cable in cables]))
            stack.callback(guests[-1].close)

        status = guests[0].wait(deadline - time.monotonic())
        if status is None:
            say(f"ended after {timeout:g} s; the guest's last words:\n{guests[0].last_words()}")
            return TIMED_OUT
        for other in guests[1:]:
            status = status or other.wait(PEER_GRACE) or 0
        return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="see below"
    )
    parser.add_argument("--prepare", action="store_true", help="fetch the kernel anew; run nothing")
    parser.add_argument("--cpus", type=int, default=2, help="of each guest (2)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of each guest (2048)")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds for all of it (600)")
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
            prepare(anew=True)
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
