"""The kernels of guest.py and the modules that they need: Debian's, kept in CACHE."""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

RECIPE = 4  # another number where the cache has to be made anew
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyfab-guest" / str(RECIPE)
BOOT = Path(__file__).with_name("guest_boot.sh")
APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root")  # that it uses

# With what they depend on. Nothing else can be loaded in a guest.
MODULES = (
    *("virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay"),
    *("dummy", "veth", "sch_netem"),
    "vgem",  # which makes dma-bufs: Debian's kernel has no udmabuf
    *("crc32_generic", "crc32c_generic", "ib_uverbs", "ib_umad", "rdma_ucm", "rdma_rxe"),
)
ONLY_OLDER = ("crc32_generic", "crc32c_generic")  # which newer kernels have within themselves
NEWER = "trixie-backports"  # where Debian has newer kernels, for whoever asks for one


class NoGuest(Exception):
    """There can be no guest here; the message says why and what to do."""


def say(text: str) -> None:
    print(f"guest: {text}", file=sys.stderr, flush=True)


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
    if not busybox or b"/ld-linux" in Path(busybox).read_bytes():  # one that needs libraries
        absent.append("busybox-static")
    return f"missing here: apt-get install {' '.join(absent)}" if absent else ""


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command; NoGuest with its last words if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise NoGuest("\n".join([f"{shlex.join(map(str, command))} failed:", *words]))
    return done.stdout


def newer_packages(work: Path) -> list[str]:
    """Arguments of apt with which it knows the packages of NEWER, from wherever it has this system's."""
    targets = call("apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)")
    mirrors = [line.split()[0] for line in targets.splitlines() if re.search(r"/debian/? main$", line)]
    if not mirrors:
        raise NoGuest("apt knows no packages of Debian: is `apt-get update` needed?")
    for folder in ("lists/partial", "archives/partial"):
        (work / "apt" / folder).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (work / "apt/sources.list").write_text(f"deb [signed-by={keys}] {mirrors[0]} {NEWER} main\n")
    places = {"Etc::SourceList": "sources.list", "State::Lists": "lists", "Cache": "."}
    arguments = [f"-oDir::{name}={work}/apt/{place}" for name, place in places.items()]
    arguments.append("-oDir::Etc::SourceParts=/dev/null")
    call("apt-get", "-q", *arguments, "update")
    return arguments


def packages_of_kernel(apt: Sequence[str]) -> list[str]:
    """The newest kernel's package, and with it those into which newer ones are divided."""

    def needs(package: str, wanted: str) -> list[str]:
        return re.findall(rf"Depends: ({wanted})\n", call("apt-cache", *apt, "depends", package))

    image = needs("linux-image-amd64", r"linux-image-\d\S+")
    if not image:
        raise NoGuest("apt knows no linux-image-amd64: is `apt-get update` needed?")
    return [*image[:1], *needs(image[0], r"linux-(?:base|binary|modules)-\d\S+")]


def fetch(work: Path, packages: Sequence[str], apt: Sequence[str] = ()) -> None:
    """Downloads Debian packages and unpacks them into work/files."""
    try:
        call("apt-get", "-q", *apt, "download", *packages, cwd=work)
    except NoGuest as error:
        raise NoGuest(f"{error}\nIs `apt-get update` needed?") from None
    for package in work.glob("*.deb"):
        call("dpkg", "-x", package, work / "files")
        package.unlink()


def uncompressed(image: bytes) -> bytes:
    """The kernel within a bzImage, which QEMU starts without the slow emulated unpacking; else the image as it is."""
    sectors = image[0x1F1]
    offset, length = (int.from_bytes(image[at : at + 4], "little") for at in (0x248, 0x24C))
    payload = image[(sectors + 1) * 512 + offset :][:length]
    try:
        return lzma.decompress(payload[:-4])  # behind it stands the size of what is packed
    except lzma.LZMAError:
        return image


class Modules:
    """The modules of an unpacked kernel package."""

    def __init__(self, root: Path) -> None:
        (folder,) = next(
            path for path in (root / "lib/modules", root / "usr/lib/modules") if path.exists()
        ).iterdir()
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
        work,
        [f"{headers}-{flavour}", f"{headers}-common", f"linux-kbuild-{series}", f"linux-source-{series}"],
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
    for folder in ("bin", "dev", "host", "memory", "merged", "modules"):
        (root / folder).mkdir(parents=True)
    for name, content in modules.items():
        (root / "modules" / name).write_bytes(content)
    (root / "modules/order").write_text("".join(f"{name}\n" for name in modules))
    busybox = program("busybox")
    shutil.copy(busybox, root / "bin/busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    shutil.copy(BOOT, root / "init")
    (root / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    pack = [busybox, "cpio", "-o", "-H", "newc"]
    return subprocess.run(pack, cwd=root, input=names.encode(), capture_output=True, check=True).stdout


def prepare(anew: bool = False, newer: bool = False) -> Path:
    """The folder with `kernel` and `initrd`; `no-siw`, where it is there, says why there is no siw0.

    newer: of the kernel of NEWER, which has tls and no siw.
    """
    if reason := missing():
        raise NoGuest(reason)
    cache = CACHE / "newer" if newer else CACHE
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if anew or not (cache / "initrd").exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                make(Path(folder), cache, newer)
    return cache


def make(work: Path, cache: Path, newer: bool) -> None:
    apt = newer_packages(work) if newer else []
    packages = packages_of_kernel(apt)
    say(f"preparing {packages[0]} in {cache}, once")
    fetch(work, packages, apt)
    modules = Modules(work / "files")
    names = [*MODULES, "siw"]
    (cache / "no-siw").unlink(missing_ok=True)
    if newer:
        names = [*(name for name in MODULES if name not in ONLY_OLDER), "tls"]
        (cache / "no-siw").write_text("the newer kernel is for other tests\n")
    elif "siw" not in modules.files:
        try:
            modules.files["siw"] = build_siw(work, modules.release)
        except NoGuest as error:
            (cache / "no-siw").write_text(str(error))
            names.remove("siw")
    (image,) = (path for path in (work / "files").rglob("vmlinuz*") if path.is_file())
    (cache / "kernel").write_bytes(uncompressed(image.read_bytes()))
    (work / "ready").write_bytes(make_initrd(work, modules.order(names)))
    (work / "ready").rename(cache / "initrd")
