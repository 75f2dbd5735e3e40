"""Rank, size and meeting place of this process, as its launcher put them into the environment."""

from __future__ import annotations

import errno
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyfab.core.errors import InvalidArgumentError, make_error
from pyfab.meeting import private_files, tokens
from pyfab.meeting.addresses import join_address

_RANK_VARIABLES = (  # launcher, rank, size
    ("pyfab", "PYFAB_RANK", "PYFAB_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),
)
_NODE_VARIABLES = (  # ranks of this node, of all
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
)
_JOB_VARIABLES = (
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMI_JOBID",),
)
_TORCHRUN_JOB = (("TORCHELASTIC_RUN_ID",),)


class Launch(NamedTuple):
    """Who this process is and where it meets the others."""

    rank: int
    size: int
    rendezvous: Any
    launcher: str


def from_environment(environment: Mapping[str, str] | None = None, rendezvous: Any = None) -> Launch:
    """Reads the variables of the first launcher found: PYFAB_RANK/PYFAB_SIZE, torchrun, Open MPI, PMI (MPICH), srun.

    The meeting place is `rendezvous` if given, or PYFAB_RENDEZVOUS if set. Otherwise it is the first of these that can be had:

    - the store of torchrun's agent, which needs no other port;
    - ``tcp://MASTER_ADDR:MASTER_PORT+1`` (65534 if MASTER_PORT is 65535), so that torch keeps MASTER_PORT for itself,
      with the name of the job behind it if the launcher tells one;
    - if mpirun or srun runs the job on one node, a folder of this user, named after the job.

    Raises InvalidArgumentError naming the missing variables. PYFAB_TOKEN is one of them where a job runs on several nodes that do
    not meet in a folder: no launcher gives all ranks a secret, so nothing else tells them from others on the network.
    """
    env = os.environ if environment is None else environment
    found = rank_and_size(env)
    if found is None:
        raise InvalidArgumentError(
            "no launcher's variables are set. Start with torchrun, mpirun or srun; or set PYFAB_RANK, PYFAB_SIZE and"
            " PYFAB_RENDEZVOUS (tcp://host:port); or start local processes with pyfab.spawn"
        )
    launcher, rank, size = found
    place = rendezvous or env.get("PYFAB_RENDEZVOUS") or _meeting_place(env, launcher, size)
    asks = isinstance(place, str) and not place.startswith("file:")
    if (
        asks
        and _several_nodes(env, launcher)
        and not (env.get("PYFAB_TOKEN") or tokens.stated(None) is not None)
    ):
        raise InvalidArgumentError(
            f"the {size} ranks run on several nodes and meet at {place}: {tokens.WHAT_TO_SET}. Or let them meet in a folder that"
            " all nodes share (PYFAB_RENDEZVOUS=file:///folder)"
        )
    return Launch(rank, size, place, launcher)


def rank_and_size(environment: Mapping[str, str] | None = None) -> tuple[str, int, int] | None:
    """Launcher, rank and size that the first launcher's variables tell; None if there is none.

    InvalidArgumentError if only one of the two is there, or what they say is no rank.
    """
    env = os.environ if environment is None else environment
    for launcher, rank_name, size_name in _RANK_VARIABLES:
        if rank_name in env or (launcher == "pyfab" and size_name in env):
            rank, size = _number(env, rank_name), _number(env, size_name)
            if size < 1 or rank >= size:
                raise InvalidArgumentError(
                    f"{rank_name}={rank} and {size_name}={size}: ranks are 0 to size - 1"
                )
            return launcher, rank, size
    return None


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name)
    if text is None:
        raise InvalidArgumentError(f"the environment variable {name} is missing")
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgumentError(f"{name}={text!r} is no number from 0 on")
    return int(text)


def _meeting_place(env: Mapping[str, str], launcher: str, size: int) -> str:
    if size == 1:
        return "tcp://127.0.0.1:1"  # there is nobody to meet, and nothing listens there
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and _torch_is_here():
            return "torch"
        port = _number(env, "MASTER_PORT")
        job = _told_job(env, launcher)
        place = join_address(env["MASTER_ADDR"], port + 1 if port < 65535 else port - 1)
        return f"tcp://{place}{job and '/'}{job}"
    if launcher in ("pyfab", "torchrun"):
        wanted = (
            "PYFAB_RENDEZVOUS" if launcher == "pyfab" else "MASTER_ADDR and MASTER_PORT, or PYFAB_RENDEZVOUS"
        )
        raise InvalidArgumentError(
            f"{wanted} must be set: where the {size} ranks meet, for example tcp://127.0.0.1:29400"
        )
    if _several_nodes(env, launcher):
        raise InvalidArgumentError(
            "the job runs on several nodes: set PYFAB_RENDEZVOUS=tcp://host:port, the host being the one of rank 0, or"
            " file:///folder on a file system that all nodes share"
        )
    return f"file://{_private_folder()}/{_job_name(env, launcher)}"


def _torch_is_here() -> bool:
    return importlib.util.find_spec("torch") is not None


def _several_nodes(env: Mapping[str, str], launcher: str) -> bool:
    """Whether the launcher tells that not all ranks are on this node. What other launchers around it tell does not count."""
    totals = {size for name, _, size in _RANK_VARIABLES if name == launcher}
    for local, total in _NODE_VARIABLES:
        if total in totals and local in env:
            return env[local] != env.get(total)
    by_slurm = launcher in ("srun", "mpirun")
    return by_slurm and env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1")) != "1"


def _private_folder() -> Path:
    """A folder under the system's temporary folder that only this user can change, the same for all ranks on this node."""
    try:
        return private_files.temporary_folder()
    except OSError as error:
        raise make_error(
            error.errno or errno.EIO,
            f"the ranks cannot meet under {tempfile.gettempdir()}: {error.strerror}; set PYFAB_RENDEZVOUS, or TMPDIR to a"
            " folder that can be written",
        ) from error


def _told_job(env: Mapping[str, str], launcher: str) -> str:
    """The job's name as the launcher tells it to all ranks; empty if it tells none."""
    for names in _TORCHRUN_JOB if launcher == "torchrun" else _JOB_VARIABLES if launcher != "pyfab" else ():
        if all(name in env for name in names):
            text = "-".join(env[name] for name in names)
            return "job-" + "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
    return ""


def _job_name(env: Mapping[str, str], launcher: str) -> str:
    if told := _told_job(env, launcher):
        return told
    # Ranks on one node are children of one launcher. Its start time tells it from a later process with its number.
    parent = os.getppid()
    start = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"job-of-{parent}-{start}"
