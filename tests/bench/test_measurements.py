"""pyfab.bench and the commands over it: what is measured, kept, compared and drawn. How fast it is, no test says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyfab
import pytest
from pyfab import bench
from pyfab.__main__ import main
from pyfab.bench import _operations
from pyfab.bench._facts import remarks
from pyfab.bench._measurement import Measurement
from pyfab.bench._pair import local, new_run, remote
from pyfab.bench._results import Measurements
from pyfab.bench._timing import choose_cores
from rich.console import Console

QUICK: dict[str, Any] = {"rounds": 1, "round_ms": 1}
FACTS = {"initiator": {"cpu": "one", "kernel": "6"}, "target": {"cpu": "two", "kernel": "6"}}


Capture = pytest.CaptureFixture[str]


def quick_bench(*more: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyfab", *QUICK_BENCH, *map(str, more)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def row(metric: str, unit: str, median: float, size: int = 8, operation: str = "put") -> Measurement:
    return Measurement(
        metric, operation, size, "mapped", "shm", "shm.0", unit, median, median, median, (median,)
    )


@pytest.fixture(scope="module")
def all_of_it() -> Measurements:
    """Everything that there is to measure, at two sizes."""
    return bench.measure(links=["shm", "tcp"], sizes=[8, 4096], memory=["mapped", "other"], **QUICK)


def test_every_case_is_measured_once(all_of_it: Measurements) -> None:
    expected = set()
    for metric, operations in {
        "latency": ("put", "get", "fetch_add", "message"),
        "bandwidth": ("put", "get", "message"),
        "rate": ("put", "get", "atomic", "message", "write_many", "read_many"),
    }.items():
        for operation in operations:
            for size in (8,) if operation in ("fetch_add", "atomic") else (8, 4096):
                for memory in ("-",) if operation == "message" else ("mapped", "other"):
                    expected |= {(metric, operation, size, memory, links) for links in ("shm", "tcp")}
    assert sorted(row.key for row in all_of_it) == sorted(expected)
    for one in all_of_it:
        assert one.link == f"{one.links}.0"
        assert all(value > 0 for value in (one.median, one.p10, one.p99, *one.rounds))
        assert one.rounds == (one.median,)
        assert one.p10 <= one.p99 if one.unit == "us" else one.p10 >= one.p99


def test_the_machines_are_recorded(all_of_it: Measurements) -> None:
    for facts in all_of_it.facts.values():
        assert facts["pyfab-rdma"] == pyfab.__version__
        assert facts["cores"] == os.cpu_count()
        assert {"date", "cpu", "kernel", "python", "numpy", "governor", "load"} <= facts.keys()
    assert [all_of_it.facts[side]["core"] for side in ("initiator", "target")] == list(choose_cores())


@pytest.mark.parametrize(
    "load, cores, there, busy",
    [
        (0.3, 2, None, []),
        (1.5, 2, None, ["here"]),
        (1.5, 8, None, []),
        (7.0, 8, {"host": "there", "load": 7.5, "cores": 8}, ["there"]),
        (0.9, 1, {"host": "there", "load": 0.1, "cores": 1}, ["here"]),
        (None, 2, {}, []),
    ],
)
def test_who_was_busy_is_told(load: Any, cores: int, there: Any, busy: list[str]) -> None:
    here = {"host": "here", "load": load, "cores": cores}
    told = remarks({"initiator": here, "target": here if there is None else there})
    assert [line.split()[0] for line in told] == busy
    assert all(" cores, when this run began" in line for line in told)


def test_a_table_for_everybody(all_of_it: Measurements) -> None:
    assert "<td>write_many</td>" in all_of_it._repr_html_()
    assert json.loads(json.dumps(all_of_it.records()))[0]["rounds"] == list(all_of_it[0].rounds)
    assert "bandwidth" in repr(all_of_it)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(all_of_it)
    text = console.export_text()
    assert [title in text for title in ("latency, µs", "bandwidth, GB/s", "rate, million")] == [True] * 3


def test_saved_and_loaded(all_of_it: Measurements, tmp_path: Path) -> None:
    all_of_it.save(tmp_path / "run.json")
    loaded = bench.load(tmp_path / "run.json")
    assert list(loaded) == list(all_of_it)
    assert loaded.facts == json.loads(json.dumps(all_of_it.facts))
    same = all_of_it.compare(loaded)
    assert len(same) == len(all_of_it)
    assert {ratio.speed for ratio in same} == {1.0}
    assert not same.missing
    assert not same.changed


def test_comparison_is_of_speeds() -> None:
    now = Measurements(
        [row("latency", "us", 1.0), row("rate", "Mops", 5.0), row("rate", "Mops", 1, 64)], FACTS
    )
    saved = Measurements(
        [row("latency", "us", 2.0), row("rate", "Mops", 10.0)],
        FACTS | {"initiator": {"cpu": "one", "kernel": "5"}},
    )
    compared = now.compare(saved)
    assert [(ratio.metric, ratio.speed) for ratio in compared] == [("latency", 2.0), ("rate", 0.5)]
    assert [ratio.metric for ratio in compared.slower_than(0.9)] == ["rate"]
    assert compared.slower_than(0.5) == []
    assert compared.missing == ["put 64 B"]
    assert compared.changed == {"kernel": ("5", "6")}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "other"}',
        '{"format": "pyfab bench 1", "facts": {"initiator": {}}, "measurements": [{}]}',
        json.dumps(
            {
                "format": "pyfab bench 1",
                "facts": FACTS,
                "measurements": [row("latency", "us", 0.0)._asdict()],
            }
        ),
    ],
)
def test_what_is_no_saved_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(pyfab.InvalidArgumentError, match="no saved run"):
        bench.load(tmp_path / "run.json")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"sizes": [12]}, "multiples of 8"),
        ({"sizes": [1 << 40]}, "at most"),
        ({"metrics": ["speed"]}, "choose from latency"),
        ({"memory": "huge"}, "choose from mapped"),
        ({"operations": ["push"]}, "choose from put"),
        ({"metrics": ["latency"], "operations": ["write_many"]}, "nothing to measure"),
        ({"rounds": 0}, "both are positive"),
        ({"links": "nosuch"}, "nosuch"),
    ],
)
def test_what_cannot_be_measured(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((pyfab.FabricError, ValueError), match=message):
        bench.measure(**QUICK | wrong)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["put", "message"])
def test_operations_that_do_nothing_get_no_figure(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    sources = _operations.ONE_SIDED if operation == "put" else _operations.MESSAGES
    lazy = "pass" if operation == "put" else "ep.tsend(local, peer, 1)\nep.trecv(local.copy(), 1).result(9)"
    monkeypatch.setitem(sources, operation, lazy)
    with pytest.raises(pyfab.FabricError, match=r"at the target|other bytes"):
        bench.latency("shm", [8], operations=[operation], **QUICK)


def test_the_caller_is_left_as_it_was() -> None:
    cores = os.sched_getaffinity(0)
    told: list[tuple[int, int]] = []
    bench.latency("shm", [8], operations=["put", "get"], progress=lambda *step: told.append(step), **QUICK)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert os.sched_getaffinity(0) == cores


def test_a_target_that_is_killed_ends_the_measurement() -> None:
    known = psutil.Process().children()
    with local("tcp", 1 << 16, 0) as session:
        assert session.run("put", "mapped", 8, 1, 1)
        (target,) = (child for child in psutil.Process().children() if child not in known)
        target.send_signal(signal.SIGKILL)
        target.wait(60)
        with pytest.raises(OSError):  # noqa: PT011 - PeerLostError or ConnectionError: whoever notices first
            session.run("message", "-", 8, 1, 1)


class TestListener:
    """The other side, in this process."""

    def test_serves_runs_one_after_another(self) -> None:
        lines: list[str] = []
        with bench.Listener(token="secret", tell=lines.append) as listener:
            assert listener.open_to == "those who have the token"
            for _ in range(2):
                table = bench.measure(
                    ["latency"], ["shm", "tcp"], [8], peer=listener.address, token="secret", **QUICK
                )
                assert len(table) == 8
                come, gone = (sum(line.endswith(word) for line in lines) for word in ("come", "gone"))
                assert come == gone > 0  # nobody who comes next is refused

    def test_keeps_out_who_would_disturb(self) -> None:
        with bench.Listener() as listener:
            mine = new_run()
            with (
                remote("shm", 1 << 16, listener.address, None, mine),
                pytest.raises(ConnectionError, match="somebody"),
            ):
                remote("shm", 1 << 16, listener.address, None, new_run())

    def test_asks_for_the_token(self) -> None:
        with bench.Listener(token="secret") as listener, pytest.raises(ConnectionError, match="token"):
            bench.latency("tcp", [8], peer=listener.address, token="guess", **QUICK)

    def test_refuses_what_it_has_not(self) -> None:
        with (
            bench.Listener(links="tcp:nosuch") as listener,
            pytest.raises(ConnectionError, match="nosuch"),
        ):
            bench.latency("tcp", [8], peer=listener.address, **QUICK)


# --- pictures


@pytest.mark.slow
def test_pictures(all_of_it: Measurements, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = all_of_it.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")  # what notebooks show
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["latency", "bandwidth", "rate"]
    heading = figure._suptitle.get_text()
    assert heading.startswith("shm (shm.0), tcp (tcp.0)   ")
    assert all(all_of_it.facts["initiator"][name][:10] in heading for name in ("host", "date"))
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert {"put, mapped, shm", "put, other, tcp", "message, shm"} <= labels
    all_of_it.write_plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    all_of_it.write_plot(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert 'src="data:image/svg+xml;base64,' in page
    assert page.count("<tr>") > len(all_of_it)
    assert "http" not in page.replace("http://www.w3.org", "")
    with pytest.raises(pyfab.InvalidArgumentError, match=r"\.html"):
        all_of_it.write_plot(tmp_path / "run.txt")


def test_bars_where_there_is_one_size() -> None:
    pytest.importorskip("matplotlib")
    rows = [row("rate", "Mops", 0.1, operation="get"), row("rate", "Mops", 50.0)]
    (axis,) = Measurements(rows, FACTS).plot().axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["put", "get"]
    assert axis.get_xscale() == "log"
    with pytest.raises(pyfab.InvalidArgumentError, match="empty"):
        Measurements([], FACTS).plot()


def test_the_extra_for_pictures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        Measurements([row("rate", "Mops", 1.0)], FACTS).plot()


# --- the commands


QUICK_BENCH = (
    *("bench", "--rounds", "1", "--round-ms", "1", "--links", "shm"),
    *("--metrics", "latency", "--operations", "put", "--sizes", "8", "4K"),
)


def test_bench_keeps_compares_and_fails(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    kept, fast, slow = (tmp_path / name for name in ("kept.json", "fast.json", "slow.json"))
    ran = quick_bench("--json", "--save", kept, "--plot", tmp_path / "run.html")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == json.loads(kept.read_text())
    assert [one["size"] for one in json.loads(ran.stdout)["measurements"]] == [8, 4096]
    assert (tmp_path / "run.html").exists()

    saved = bench.load(kept)
    for path, factor in ((fast, 1e-6), (slow, 1e6)):
        rows = [one._replace(median=one.median * factor) for one in saved]
        Measurements(rows, saved.facts).save(path)
    for path, status in ((slow, 0), (fast, 1)):
        assert main([*QUICK_BENCH, "--compare", str(path), "--fail-below", "0.9"]) == status
        told = capsys.readouterr()
        assert "faster than the saved run" in " ".join(told.out.split())
        assert told.err.count("slower: ") == 2 * status
    assert main([*QUICK_BENCH, "--compare", str(fast), "--json"]) == 0
    ratios = json.loads(capsys.readouterr().out)["comparison"]["ratios"]
    assert [ratio["speed"] < 0.9 for ratio in ratios] == [True, True]


@pytest.mark.slow
def test_bench_shows_its_progress_on_terminals_alone() -> None:
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "pyfab", *QUICK_BENCH, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other_end, text=True) as process:
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 1 << 12):
                shown += more
        os.close(terminal)
        assert process.stdout
        assert json.loads(process.stdout.read())["measurements"]
    assert b"measuring" in shown
    assert b"4/4" in shown


@pytest.mark.parametrize(
    "status, arguments, message",
    [
        (2, ["--fail-below", "0.9"], "--compare"),
        (1, ["--compare", "missing.json"], "missing.json: No such file"),
        (1, ["--plot", "run.txt"], ".html"),
        (1, ["127.0.0.1:1"], "refused"),
        (2, ["127.0.0.1:1", "--listen", "127.0.0.1:0"], "leave the address out"),
        (2, ["--listen", "127.0.0.1:0", "--links", "shm", "--links", "tcp"], "one --links"),
        (1, ["--listen", "192.0.2.7:4000"], "cannot listen on 192.0.2.7:4000: Cannot assign"),
    ],
)
def test_bench_says_what_is_wrong(status: int, arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["bench", "--rounds", "1", *arguments]) == status
    told = capsys.readouterr().err
    assert told.startswith("pyfab bench: ")
    assert message in told


def test_a_name_that_does_not_resolve_is_told_in_words(capsys: Capture) -> None:
    with pytest.raises(socket.gaierror) as resolving:
        socket.getaddrinfo("nobody.invalid", 0)
    assert main(["bench", "--listen", "nobody.invalid:0"]) == 1
    told = capsys.readouterr().err
    assert told == f"pyfab bench: cannot listen on nobody.invalid:0: {resolving.value.strerror}\n"


@pytest.mark.parametrize("option", ["--save", "--plot"])
def test_bench_measures_nothing_that_it_could_not_write(
    option: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_, **__: pytest.fail("it measures"))
    assert main(["bench", option, str(tmp_path / "nowhere" / "run.png")]) == 1
    assert f"{tmp_path / 'nowhere'}: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--sizes", "12"], ["--sizes", "0"], ["here"], ["--listen", "here"]])
def test_bench_takes_sizes_and_addresses(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    assert ("multiples of 8" if "--sizes" in arguments else "write host:port") in capsys.readouterr().err


def test_nothing_in_common_is_no_success(tmp_path: Path, capsys: Capture) -> None:
    Measurements([row("rate", "Mops", 1.0)], FACTS).save(tmp_path / "other.json")
    comparison = ["--compare", str(tmp_path / "other.json"), "--fail-below", "0.1"]
    assert main([*QUICK_BENCH, *comparison]) == 1
    assert "none of these figures" in capsys.readouterr().err


def ignores(process: psutil.Process, number: signal.Signals) -> bool:
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return ignored is not None and bool(int(ignored[1], 16) >> (number - 1) & 1)


@pytest.mark.slow
def test_ctrl_c_is_the_business_of_one_process() -> None:
    """It reaches both; the target leaves it to the other before it imports, and ends without a word."""
    command = [sys.executable, "-m", "pyfab", "bench", "--operations", "message", "--rounds", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not (children := psutil.Process(process.pid).children()) or not ignores(
            children[0], signal.SIGINT
        ):
            assert process.poll() is None
        (target,) = children
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert not target.is_running()


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured() -> None:
    """Once there is a round of something; before that it ends the run (above)."""
    calls = []

    def interrupt(done: int, steps: int) -> None:
        calls.append((done, steps))
        if done == 2 * cases + 1:  # the plans, a round, and one case of the next round
            signal.raise_signal(signal.SIGINT)

    cases = 2
    settings: dict[str, Any] = {"sizes": [8, 64], "operations": "put", "rounds": 9, "round_ms": 1}
    found = bench.measure("latency", "shm", **settings, progress=interrupt, partial=True)
    assert found.interrupted and calls[-1] == (5, 20)
    assert sorted(len(one.rounds) for one in found) == [1, 2]
    assert found.facts["target"]["cores"] == os.cpu_count()
    for partial, cases in ((False, 2), (True, 0)):  # noqa: B007 - `interrupt` looks at it
        with pytest.raises(KeyboardInterrupt):
            bench.measure("latency", "shm", **settings, progress=interrupt, partial=partial)


def test_the_command_shows_what_was_measured_before_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    rows = Measurements([row("latency", "us", 0.5)], FACTS, interrupted=True)
    monkeypatch.setattr(bench, "measure", lambda *_, **how: rows if how["partial"] else None)
    assert main([*QUICK_BENCH]) == 130
    told = capsys.readouterr()
    assert "0.500" in told.out and told.err.startswith("interrupted: ")


def test_marks_of_a_picture_are_plain_numbers() -> None:
    """Also where the figures lie between two powers of ten, and sizes close together."""
    rows = [row("bandwidth", "GB/s", median, size) for size, median in ((8, 21.0), (16, 47.5), (24, 30.0))]
    figure = Measurements(rows, FACTS).plot()
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_ylim()
    axis = figure.axes[0].yaxis
    shown = [
        label.get_text()
        for label in axis.get_majorticklabels() + axis.get_minorticklabels()
        if low <= label.get_position()[1] <= high
    ]
    assert len(shown) > 1
    assert all(low <= float(text) <= high for text in shown)


def test_pingpong(capsys: Capture) -> None:
    assert main(["pingpong", "--sizes", "8", "64K", "--rounds", "1", "--round-ms", "1", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measurements"]
    assert [(one["operation"], one["size"], one["link"]) for one in measured] == [
        ("message", 8, "shm.0"),
        ("message", 1 << 16, "shm.0"),
    ]
    with pytest.raises(SystemExit, match="2"):
        main(["pingpong", "--sizes", "8q"])
    assert "64K or 1M" in capsys.readouterr().err
