"""``pyfab validate``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import UsageError, add_file, add_token, status_of, token

if TYPE_CHECKING:
    from pyfab.cli._options import Commands

_PASSED_ON = (
    "links",
    "peer",
    "peer_links",
    "launch",
    "set",
    "soak",
    "expect",
    "drills",
    "link_down",
    "link_up",
)


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "validate",
        help="test links to another host, or within this one, and report",
        description="Runs the validation suite, and FILEs of your own tests, over links to a peer; docs/validation.md.",
    )
    add_file(command, "files", nargs="*", metavar="FILE", help="tests of your own, run after the suite")
    command.add_argument(
        "--links", action="append", metavar="SPEC", help="for example verbs:mlx5_0; may be repeated"
    )
    command.add_argument(
        "--peer",
        action="append",
        metavar="WHERE",
        help="HOST[:PORT] of a `pyfab agent`, ssh://[USER@]HOST[:PORT], process or thread; may be repeated",
    )
    command.add_argument(
        "--peer-links", metavar="SPEC", help="the peer's links, if they are called otherwise there"
    )
    command.add_argument(
        "--launch",
        metavar="COMMAND",
        help="starts the agent, for example 'ssh {host} /opt/venv/bin/pyfab {agent}'",
    )
    command.add_argument(
        "--job",
        action="store_true",
        help="be a process of a job of torchrun, mpirun or srun: rank 0 tests, the others are its peers",
    )
    add_token(command, "the agents' token")
    command.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a setting of all domains: peer_deadline=5"
    )
    command.add_argument("--soak", type=float, metavar="SECONDS", help="random operations, all accounted for")
    add_file(command, "--expect", metavar="FILE.toml", help="latencies and bandwidths to reach")
    command.add_argument("--drills", metavar="LIST", help="faults to try: kill,stop,resume,link or all")
    command.add_argument("--link-down", metavar="COMMAND", help="takes a link down, for the drill link")
    command.add_argument("--link-up", metavar="COMMAND", help="brings it up again")
    command.add_argument(
        "--pytest", default="", metavar="ARGUMENTS", help="more for pytest: --pytest='-k atomics -x'"
    )
    add_file(command, "--junit", metavar="FILE.xml", help="write a report as JUnit XML")
    add_file(command, "--json", metavar="FILE.json", help="write a report as JSON")
    add_file(command, "--html", metavar="FILE.html", help="write a report as one HTML page with plots")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns pytest's exit status."""
    if importlib.util.find_spec("pytest") is None:
        raise ValueError("pytest is missing: pip install pytest cloudpickle matplotlib")
    if not options.job:
        return _pytest(options, options.peer or [], token(options))
    from pyfab.testing.launch import job

    if options.peer:
        raise UsageError("--peer: with --job, the peers are the job's other processes")
    with job() as agents:
        if agents is None:
            return 0
        return _pytest(options, [str(agent) for agent in agents], agents[0].token)


def _pytest(options: argparse.Namespace, peers: list[str], secret: str | None) -> int:
    """Runs pytest in a process of its own, which has loaded nothing before. The token goes through the environment."""
    from pyfab.meeting.interruption import told_of_the_end

    command = [sys.executable, "-m", "pytest", "-p", "pytest_pyfab", "-p", "no:cacheprovider"]
    root = os.path.commonpath([_suite().parent, *(Path(file).absolute().parent for file in options.files)])
    command += ["-c", str(_suite() / "pytest.ini"), "--rootdir", root]
    for name in _PASSED_ON:
        value = peers if name == "peer" else getattr(options, name)
        values = value if isinstance(value, list) else [value]
        command += [f"--pyfab-{name.replace('_', '-')}={item}" for item in values if item is not None]
    command += [
        f"--pyfab-{kind}={getattr(options, kind)}" for kind in ("json", "html") if getattr(options, kind)
    ]
    command += [f"--junit-xml={options.junit}"] if options.junit else []
    command += ["--pyfab-summary", str(_suite()), *options.files, *shlex.split(options.pytest)]
    told = {"PYFAB_TOKEN": secret} if secret is not None else {}
    process = subprocess.Popen(command, env={**os.environ, **told})
    with told_of_the_end(lambda _: process.terminate()):
        while True:
            try:
                status = status_of(process)
                _ask(options)
                return status
            except KeyboardInterrupt:  # pytest was interrupted, too, and reports what it has
                pass


def _ask(options: argparse.Namespace) -> None:
    """Asks people whose cards are known from simulations only for their report."""
    from pyfab.tools.cards import request

    if asked := request(options.links or [], options.json or ""):
        print(asked)


def _suite() -> Path:
    """The folder of the installed suite."""
    import pyfab.testing.suite

    return Path(pyfab.testing.suite.__file__).parent
