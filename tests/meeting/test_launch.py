"""Rank, size and meeting place from the variables that each launcher sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyfab.core.errors import InvalidArgumentError
from pyfab.meeting.launchers import Launch, from_environment

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "2",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return f"file://{tmp_path}/pyfab-{os.geteuid()}"


def test_own_variables() -> None:
    environment = {"PYFAB_RANK": "1", "PYFAB_SIZE": "3", "PYFAB_RENDEZVOUS": "file:///shared/job"}
    assert from_environment(environment) == Launch(1, 3, "file:///shared/job", "pyfab")
    assert from_environment(environment | TORCHRUN).launcher == "pyfab"


def test_torchrun_leaves_its_port_to_torch() -> None:
    assert from_environment(TORCHRUN) == Launch(2, 4, "tcp://10.0.0.7:29501", "torchrun")
    assert from_environment(TORCHRUN | {"MASTER_PORT": "65535"}).rendezvous == "tcp://10.0.0.7:65534"
    assert from_environment(TORCHRUN | {"MASTER_ADDR": "fe80::1"}).rendezvous == "tcp://[fe80::1]:29501"
    assert from_environment(TORCHRUN | {"PYFAB_RENDEZVOUS": "tcp://a:1"}).rendezvous == "tcp://a:1"
    assert from_environment(TORCHRUN, "torch").rendezvous == "torch"


def test_the_store_of_torchruns_agent_needs_no_other_port(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert from_environment(environment).rendezvous == "torch"
    assert from_environment(environment | {"PYFAB_TOKEN": "t"}).rendezvous == "torch"
    assert from_environment(environment | {"PYFAB_RENDEZVOUS": "tcp://a:1"}).rendezvous == "tcp://a:1"
    assert from_environment(environment | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) == from_environment(
        TORCHRUN
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert from_environment(environment) == from_environment(TORCHRUN)


@pytest.mark.parametrize(
    "environment,job",
    [
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "1234@host/0"},
            "job-1234_host_0",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_ess_base_jobid": "77"},
            "job-77",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_JOBID": "9"}, "job-9"),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": "5",
                "SLURM_STEP_ID": "1",
                "SLURM_NNODES": "1",
            },
            "job-5-1",
        ),
    ],
)
def test_on_one_node_a_private_folder_of_the_job(environment: dict[str, str], job: str, private: str) -> None:
    launch = from_environment(environment)
    assert (launch.rank, launch.size, launch.rendezvous) == (0, 2, f"{private}/{job}")
    assert Path(private.removeprefix("file://")).stat().st_mode & 0o777 == 0o700


def test_without_a_job_number_the_launcher_itself_names_it(private: str) -> None:
    environment = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    assert from_environment(environment).rendezvous.startswith(f"{private}/job-of-{os.getppid()}-")


@pytest.mark.parametrize(
    "kind", ["folder for all", "link", "dangling link", "file", "folder of another user"]
)
def test_who_takes_the_folders_name_stops_nobody(kind: str, private: str, tmp_path: Path) -> None:
    place = Path(private.removeprefix("file://"))
    if kind == "file":
        place.touch(mode=0o700)
    elif kind == "folder for all":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "folder of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can make what belongs to another user")
        for path in (place, place.with_name(f"{place.name}-1"), place.with_name(f"{place.name}-3")):
            path.mkdir(mode=0o755)
            os.chown(path, 65534, 65534)
    else:
        place.symlink_to(tmp_path / "own")
        if kind == "link":
            (tmp_path / "own").mkdir(mode=0o700)
    number = 2 if kind == "folder of another user" else 1
    environment = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_JOBID": "7"}
    for _ in range(2):  # all ranks find the same
        assert from_environment(environment).rendezvous == f"{private}-{number}/job-7"
        assert Path(f"{place}-{number}").stat().st_mode & 0o777 == 0o700
        if kind == "folder of another user":
            place.rmdir() if place.exists() else None  # the name is free again, and not taken: jobs are under way elsewhere


def test_the_umask_takes_no_rights_of_the_folder(private: str) -> None:
    former = os.umask(0o377)
    try:
        from_environment({"PMI_RANK": "0", "PMI_SIZE": "2"})
    finally:
        os.umask(former)
    assert Path(private.removeprefix("file://")).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "4",
            "SLURM_NNODES": "2",
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
        },
    ],
)
def test_several_nodes_need_a_meeting_place(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="several nodes: set PYFAB_RENDEZVOUS"):
        from_environment(environment)
    with_token = environment | {"PYFAB_RENDEZVOUS": "tcp://n0:1", "PYFAB_TOKEN": "secret"}
    assert from_environment(with_token).rendezvous == "tcp://n0:1"
    shared = "file:///shared/meeting"
    assert from_environment(environment | {"PYFAB_RENDEZVOUS": shared}).rendezvous == shared


@pytest.mark.parametrize("place", ["tcp://n0:1", "torch"])
def test_several_nodes_need_a_token(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "PYFAB_RENDEZVOUS": place}
    with pytest.raises(InvalidArgumentError, match=r"several nodes .*set PYFAB_TOKEN to the same secret"):
        from_environment(environment)
    assert from_environment(environment | {"LOCAL_WORLD_SIZE": "4"}).rendezvous == place
    monkeypatch.setenv("PYFAB_TRUST_NETWORK", "1")
    assert from_environment(environment).rendezvous == place


@pytest.mark.parametrize(
    "environment,message",
    [
        ({}, "no launcher's variables"),
        ({"PYFAB_SIZE": "2"}, "PYFAB_RANK is missing"),
        ({"PYFAB_RANK": "0", "PYFAB_SIZE": "2"}, "PYFAB_RENDEZVOUS must be set"),
        ({"RANK": "0"}, "WORLD_SIZE is missing"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, "RANK='zero' is no number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks are 0 to size - 1"),
    ],
)
def test_what_is_missing_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        from_environment(environment)


@pytest.mark.parametrize(
    "told,name",
    [
        ({}, ""),
        ({"TORCHELASTIC_RUN_ID": "my run/1"}, "/job-my_run_1"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            "",
        ),  # of the launcher around torchrun, where steps may differ
    ],
)
def test_a_job_meets_under_its_name(told: dict[str, str], name: str) -> None:
    """So that no proof of one job's ranks counts in another job with the same token."""
    assert from_environment(TORCHRUN | told).rendezvous == f"{from_environment(TORCHRUN).rendezvous}{name}"


def test_one_process_needs_no_meeting_place() -> None:
    assert from_environment({"PYFAB_RANK": "0", "PYFAB_SIZE": "1"}).size == 1
