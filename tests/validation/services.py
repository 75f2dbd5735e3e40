"""What starts processes elsewhere, for real: an sshd on a node, and a Slurm cluster of this machine alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns import TIMEOUT, Node

PORT = 2222  # of the sshd


def program(name: str, package: str) -> str:
    """Its path; skips the test where it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not found:
        pytest.skip(f"{name} is not installed (Debian: {package})")
    return found


@contextlib.contextmanager
def sshd_on(node: Node, folder: Path, path: str) -> Iterator[list[str]]:
    """An sshd with keys of its own, whose sessions have `path` as PATH. The ssh that it lets in."""
    sshd, ssh = program("sshd", "openssh-server"), program("ssh", "openssh-client")
    if os.geteuid() != 0:
        pytest.skip("only root's sshd can start sessions")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress {node.address()}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nSetEnv PATH={path}\n"
    )
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[{node.address()}]:{PORT} {key}")
    # The folder that it wants for itself is in /run, which a machine without services may lack.
    command = f"mount -t tmpfs run /run && mkdir /run/sshd && exec {sshd} -D -e -f {folder}/sshd_config"
    daemon = subprocess.Popen([*node.command, "sh", "-c", command], stderr=subprocess.PIPE, text=True)
    try:
        assert daemon.stderr
        line = daemon.stderr.readline()
        assert "listening" in line, line
        options = ["BatchMode=yes", f"UserKnownHostsFile={folder}/known", f"IdentityFile={folder}/user"]
        yield [ssh, "-F", "none", *(word for option in options for word in ("-o", option))]
    finally:
        daemon.kill()  # and with it the node's process in front of it
        daemon.communicate()


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster of one node. The environment in which srun finds it."""
    daemons = [program(name, "munge slurm-wlm") for name in ("munged", "slurmctld", "slurmd")]
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    key, meeting = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    munge = ["--foreground", "--force", f"--key-file={key}", f"--socket={meeting}"]
    munge += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    control, node = free_ports(2)
    settings = {
        "ClusterName": "pyfab",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": control,
        "SlurmdPort": node,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={meeting}",
        "ProctrackType": "proctrack/linuxproc",  # asks for no control groups
        "TaskPlugin": "task/none",
        "SlurmdParameters": "config_overrides",  # two ranks, however few cores there are
        "NodeName": f"{host} NodeAddr=127.0.0.1 CPUs=2",
        "PartitionName": f"all Nodes={host} Default=YES",
    }
    for name in ("StateSaveLocation", "SlurmdSpoolDir"):
        settings[name] = folder / name
        (folder / name).mkdir()
    for name in ("SlurmctldPidFile", "SlurmdPidFile"):
        settings[name] = folder / name
    configuration = folder / "slurm.conf"
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    environment = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as started:
        for command, arguments in zip(daemons, (munge, ["-D"], ["-D"]), strict=True):
            log = started.enter_context((folder / f"{Path(command).name}.out").open("w"))
            process = subprocess.Popen(
                [command, *arguments], env=os.environ | environment, stdout=log, stderr=log
            )
            started.callback(process.wait, TIMEOUT)
            started.callback(process.terminate)
        deadline = time.monotonic() + TIMEOUT
        while (state := _node_state(environment)) != "idle":
            assert time.monotonic() < deadline, f"the node is {state}: {_said(folder)}"
            time.sleep(0.05)
        yield environment


def _node_state(environment: dict[str, str]) -> str:
    asked = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def _said(folder: Path) -> str:
    return "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in folder.glob("*.out"))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 where nothing listens now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
