"""The command line from the outside: exit statuses, output, messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab import _core, versions
from pyfab.tools import libfabric


def run(*arguments: str | Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyfab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
def test_demo_with_the_shipped_data() -> None:
    ran = run("demo")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all bytes and all sums are right" in ran.stdout
    assert "(1797, 8, 8) uint8" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines() if "exact" in line]
    assert [row[0] for row in rows] == ["shm", "tcp", "shm+tcp"]
    reads = [int(row[1].replace(",", "")) for row in rows]
    assert all(
        count >= 4 * 4 * 7 for count in reads
    )  # at least once all rows, by and of each of 4 processes, in 7 batches
    for link in ("shm: from", "tcp: from", "shm+tcp: from"):
        assert link in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "csv", "csv with a heading"])
def test_demo_with_own_data(tmp_path: Path, kind: str) -> None:
    array = np.random.default_rng(1).normal(size=(301, 7))
    path = tmp_path / f"own.{kind[:3]}"
    if kind == "npy":
        np.save(path, array.astype("f4"))
    else:
        np.savetxt(
            path, array, delimiter=",", header="a,b,c,d,e,f,g" if "heading" in kind else "", comments=""
        )
    ran = run("demo", "--data", path, "--procs", "3", "--links", "shm")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "own." in ran.stdout
    assert "(301, 7)" in ran.stdout


def odd_files(folder: Path) -> dict[str, tuple[Path, str]]:
    files = {
        name: folder / name
        for name in ("text.npy", "objects.npy", "scalar.npy", "words.csv", "empty.csv", "x.txt", "few.npy")
    }
    files["text.npy"].write_text("no array")
    np.save(files["objects.npy"], np.array([{}, []], object), allow_pickle=True)
    np.save(files["scalar.npy"], np.array(1))
    files["words.csv"].write_text("one,two\nthree,four\n")
    files["empty.csv"].write_text("")
    files["x.txt"].write_text("1,2")
    np.save(files["few.npy"], np.zeros((2, 2)))
    messages = {
        "text.npy": "is no .npy file of plain numbers",
        "objects.npy": "is no .npy file of plain numbers",
        "scalar.npy": "holds no rows",
        "words.csv": "no table of numbers",
        "empty.csv": "holds no rows of numbers",
        "x.txt": "give a .npy or a .csv file",
        "few.npy": "2 rows; at least one for each of the 4 processes",
    }
    return {name: (path, messages[name]) for name, path in files.items()} | {
        "missing.npy": (folder / "missing.npy", "No such file")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["text.npy", "objects.npy", "scalar.npy", "words.csv", "empty.csv", "x.txt", "few.npy", "missing.npy"],
)
def test_demo_with_odd_files(tmp_path: Path, name: str) -> None:
    path, message = odd_files(tmp_path)[name]
    ran = run("demo", "--data", path)
    assert ran.returncode == 1
    assert message in ran.stderr
    assert ran.stderr.startswith("pyfab demo: ")
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_demo_as_json() -> None:
    ran = run("demo", "--procs", "2", "--links", "shm", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["verified"] is True
    assert found["shape"] == [1797, 8, 8]
    (figures,) = found["links"]
    assert figures["links"] == "shm"
    assert figures["errors"] == 0
    assert figures["sums_exact"] is True
    assert figures["used"] == [["shm.0", "shm.0"]] * 2


@pytest.mark.slow
@pytest.mark.skipif(
    any(entry["provider"] == "verbs" and entry["usable"] for entry in _core.discover()),
    reason="there is an RDMA device, so verbs does not fail here",
)
def test_demo_fails_where_a_link_does() -> None:
    failed = run("demo", "--links", "verbs", "--json")
    assert failed.returncode == 1
    assert "finds no device" in json.loads(failed.stdout)["links"][0]["error"]
    ran = run("demo", "--links", "shm+verbs")
    assert ran.returncode == 1
    errors = ran.stderr.splitlines()
    assert [line.partition(" ")[0] for line in errors] == ["pyfab"] * 3
    assert errors[0].startswith('pyfab demo: verbs: FabricError: no link of "verbs" can be used here')
    assert errors[-1] == "pyfab demo: not everything was right"
    assert [row.split()[0] for row in ran.stdout.splitlines() if "exact" in row] == ["shm"]
    assert "verbs" not in ran.stdout
    assert "right" not in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "--listen", "192.0.2.1:1"],
        ["pingpong", "127.0.0.1:1"],
        ["fetch", "127.0.0.1:1"],
        ["serve", "nosuch.npy"],
        ["agent", "--listen", "192.0.2.1:1"],
        ["trace", "nosuch"],
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_errors_are_on_stderr(tmp_path: Path, arguments: list[str]) -> None:
    """stdout has one document, where there is a result, or nothing."""
    output = ["-o", tmp_path / "trace.json"] if arguments[0] == "trace" else []
    ran = run(arguments[0], "--json", *output, *arguments[1:])
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"pyfab {arguments[0]}: ")
    assert not ran.stdout or json.loads(ran.stdout)


def test_doctor_where_nothing_is_usable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyfab.cli import main
    from pyfab.tools import doctor

    found = doctor.report() | {"usable": False}
    monkeypatch.setattr(doctor, "report", lambda: found)
    assert main(["doctor", "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["usable"] is False
    assert shown.err == "pyfab doctor: no provider is usable here\n"


@pytest.mark.slow
def test_demo_finds_wrong_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification itself: a reader that is given other rows than it asked for."""
    from pyfab.group.remote_array import RemoteArray
    from pyfab.tools import demo
    from rich.console import Console

    def take_others(remote: RemoteArray, indices: Any, out: Any = None) -> Any:
        return original(remote, np.flip(indices), out=out)

    original = RemoteArray.take
    monkeypatch.setattr(RemoteArray, "take", take_others)
    monkeypatch.setattr(
        demo, "spawn", lambda _, n, *a, **k: pyfab.spawn(lambda g, *b: demo.visit(g, *b), n, *a, **k)
    )
    with (Path("/dev/null")).open("w") as nowhere:
        assert demo.demo(None, 2, "shm", Console(file=nowhere))["verified"] is False


COMMANDS_THAT_MEND = (
    *(
        "",
        "apt",
        "chmod",
        "docker",
        "echo",
        "ip",
        "ls",
        "mkdir",
        "modprobe",
        "mount",
        "pyfab",
        "sysctl",
        "ulimit",
        "unset",
    ),
)


@pytest.mark.slow
def test_doctor_as_json() -> None:
    ran = run("doctor", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["build"]["version"] == pyfab.__version__
    assert isinstance(found["build"]["verbs_headers"], bool)
    assert {"shm", "tcp"} <= {info["provider"] for info in found["providers"]}
    assert all(info["usable"] or info["why"] for info in found["providers"])
    checks = {check["name"]: check for check in found["checks"]}
    assert {
        "memfd",
        "/proc/self/fd",
        "cross-memory attach",
        "yama",
        "locked memory",
        "/dev/shm",
        "huge pages",
        "loopback",
        "signatures",
        "encryption",
        "rdma modules",
        "rdma devices",
        "rdma and fork()",
        "libfabric",
        "links",
    } == checks.keys()
    for check in checks.values():
        assert (check["state"] == "limited") == bool(check["mend"])
        assert check["mend"].partition(" ")[0] in COMMANDS_THAT_MEND
    assert checks["memfd"]["state"] == checks["loopback"]["state"] == "ok"


@pytest.mark.slow
def test_doctor_notices_what_is_forbidden() -> None:
    """In a process that may not be attached to, as in a hardened container."""
    script = (
        "import ctypes, json; from pyfab.tools import doctor; libc = ctypes.CDLL(None); "
        "libc.prctl(4, 0); libc.prctl(24, 19); "  # PR_SET_DUMPABLE; PR_CAPBSET_DROP: root's probe lacks CAP_SYS_PTRACE
        "print(json.dumps([c._asdict() for c in doctor.checks()]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    checks = {check["name"]: check for check in json.loads(ran.stdout)}
    assert checks["cross-memory attach"]["state"] == "limited"
    assert "ptrace" in checks["cross-memory attach"]["mend"].lower()


# What the doctor says of one thing: the command that mends it, or that it is well.
ASK = """
import sys
from pyfab.tools import doctor
doctor._contained = lambda: False
(check,) = (check for check in doctor.checks() if check.name == sys.argv[1])
print(check.mend or check.state)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, space, breaks, mend",
    [
        (
            "/dev/shm",
            "--mount",
            "mount -t tmpfs -o size=16m tmpfs /dev/shm",
            "mount -o remount,size=50% /dev/shm",
        ),
        (
            "/dev/shm",
            "--mount",
            "mount -t tmpfs tmpfs /dev",
            "mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm",
        ),
        ("loopback", "--net", "true", "ip link set lo up"),
    ],
)
def test_what_doctor_says_mends_it(name: str, space: str, breaks: str, mend: str) -> None:
    """Limits, Yama, huge pages and RDMA devices are broken and mended in a guest: tests/rdma/test_doctor.py."""
    if os.geteuid() != 0:
        pytest.skip("only root can break and mend name spaces")
    shell = f'{breaks}; mend=$("$@"); echo "$mend"; eval "$mend"; "$@"'
    command = ["unshare", space, "sh", "-ec", shell, "sh", sys.executable, "-c", ASK, name]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PATH": path}
    )
    assert ran.stdout.splitlines() == [mend, "ok"], ran.stderr


@pytest.mark.slow
def test_doctor_reads_the_limit_of_locked_memory() -> None:
    shell = 'ulimit -S -l 64; exec "$@"'
    command = ["sh", "-ec", shell, "sh", sys.executable, "-c", ASK, "locked memory"]
    mend = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert mend.startswith("ulimit -l unlimited") or "/etc/security/limits.d" in mend


@pytest.mark.parametrize(
    "links, state, found",
    [
        ("", "ok", "not set"),
        ("shm+tcp:lo", "ok", "shm + tcp:lo"),
        ("shm+nosuch", "limited", '"nosuch"'),
        ("shm+tcp:nosuch", "limited", '"nosuch"'),
    ],
)
def test_doctor_reads_the_links(monkeypatch: pytest.MonkeyPatch, links: str, state: str, found: str) -> None:
    from pyfab.tools import doctor

    monkeypatch.setenv("FI_LNX_PROV_LINKS", links)
    check = next(check for check in doctor.checks() if check.name == "links")
    assert check.state == state
    assert found in check.found


@pytest.mark.slow
def test_doctor_for_people() -> None:
    ran = run("doctor")
    assert ran.returncode == 0
    assert "providers" in ran.stdout
    assert "loopback" in ran.stdout


@pytest.mark.slow
def test_info_tells_the_versions_of_formats() -> None:
    told = json.loads(run("info", "--formats", "--json").stdout)
    assert told == {"pyfab": pyfab.__version__, "formats": versions.formats()}
    shown = run("info", "--formats").stdout
    assert all(form in shown for form in versions.formats())


@pytest.mark.slow
def test_info_tells_the_line_for_libfabric(tmp_path: Path) -> None:
    ran = run("info", "--libfabric")
    if libfabric.folder() is None:
        assert ran.returncode == 1
        assert "libfabric-dev" in ran.stderr
    else:
        assert ran.stdout == f"export FI_PROVIDER_PATH={libfabric.folder()}\n"
    (tmp_path / "libpyfab-fi.so").touch()
    why, mend = libfabric.problem(tmp_path)  # it is no library, so no libfabric takes it
    assert why
    assert mend.partition(" ")[0] in COMMANDS_THAT_MEND


@pytest.mark.slow
def test_info() -> None:
    listed = json.loads(run("info", "--json").stdout)
    assert {"shm", "tcp"} <= {info["provider"] for info in listed}
    assert "RMA" in listed[0]["caps"]
    assert {"spec", "inject_size", "max_msg_size", "mr_key_size", "max_contexts", "nics"} <= listed[0].keys()
    shown = run("info").stdout
    assert [title in shown for title in ("usable here", "limits", "network cards")] == [True] * 3
    assert "tcp:lo" in shown
    assert [info["links"] for info in json.loads(run("info", "--provider", "shm+tcp", "--json").stdout)]


@pytest.mark.parametrize("columns", [60, 80])
def test_info_on_narrow_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """No word and no number is broken, on a machine with long names."""
    import dataclasses

    from pyfab.cli import main

    shm, tcp = pyfab.getinfo("shm")[0], pyfab.getinfo("tcp:lo")[0]
    told = {"name": "enp65s0f0", "driver": "mlx5_core", "pci_address": "0000:41:00.0"}
    nic = dataclasses.replace(tcp.nics[0], **told, speed_bits_per_second=400 * 10**9)
    card = dataclasses.replace(tcp, links=("tcp:enp65s0f0",), nics=(nic,))
    verbs = dataclasses.replace(
        tcp, provider="verbs", links=("verbs:mlx5_0",), nics=(), src_addr="", max_msg_size=1 << 31
    )
    monkeypatch.setattr(pyfab, "getinfo", lambda _: [shm, tcp, card, verbs])
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    words = shown.replace(",\n", " ").replace(", ", " ").split()
    whole = {
        "contexts",
        "65,536",
        "16,777,215",
        "2,147,483,648",
        "message",
        "mlx5_core",
        "0000:41:00.0",
        "400",
    }
    assert whole <= set(words)
    assert words.count("tcp:enp65s0f0") == words.count("verbs:mlx5_0") == 2  # in both tables
    assert words.count("any") > 3


@pytest.mark.slow
def test_links() -> None:
    tables = json.loads(run("links", "--procs", "3", "--json").stdout)
    assert [[row["peer"] for row in tables[str(rank)]] for rank in range(3)] == [[1, 2], [0, 2], [0, 1]]
    assert all(row["link"].startswith("shm") for table in tables.values() for row in table)
    assert "links of rank 1" in run("links").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, other", [("fetch", "serve FILE"), ("pingpong", "bench"), ("bench", "bench")]
)
def test_what_to_start_where_nobody_answers(command: str, other: str) -> None:
    ran = run(command, "127.0.0.1:1")
    assert ran.returncode == 1
    assert ran.stderr == (
        f"pyfab {command}: nobody answers at 127.0.0.1:1 (Connection refused); start there: pyfab {other} --listen 127.0.0.1:1\n"
    )


@pytest.mark.slow
def test_an_agent_says_where_it_listens_as_json() -> None:
    command = [sys.executable, "-m", "pyfab", "agent", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout
        assert json.loads(agent.stdout.readline())["serving"].startswith("127.0.0.1:")
        agent.send_signal(signal.SIGINT)
    assert agent.returncode == 0


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_it_is_being_imported(tmp_path: Path, ignored: bool) -> None:
    """The console script, as installed, with a NumPy that is interrupted while it is imported."""
    (tmp_path / "numpy.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('went on')\n"
    )
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^pyfab = "(.+):(.+)"$', project, re.MULTILINE)
    assert found
    module, function = found.groups()
    script = f"import sys\nfrom {module} import {function}\nsys.exit({function}())"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", script, "--version"],
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    if ignored:  # as in the background of a shell without job control
        assert "went on" in ran.stderr
    else:
        assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["--print-completion", "bash"]], ids=str)
def test_whoever_reads_the_output_has_seen_enough(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        [sys.executable, "-m", "pyfab", *arguments],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_usage() -> None:
    assert run().returncode == 2
    assert run("links", "--procs", "0").returncode == 2
    assert run("trace").returncode == 2
    for command in (["demo", "--links"], ["links", "--links"], ["info", "--provider"], ["bench", "--links"]):
        ran = run(*command, "shm+nosuch")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f'argument {command[1]}: unknown provider "nosuch"; this build has ' in ran.stderr
    assert run("validate", "--job", "--peer", "process").returncode == 2
    assert run("agent", "--listen", "here").returncode == 2
    assert run("--version").stdout == f"pyfab {pyfab.__version__}\n"
    offered = run("--help").stdout
    for command in ("demo", "serve", "fetch", "info", "links", "doctor", "pingpong", "bench", "trace"):
        assert f"    {command} " in offered
