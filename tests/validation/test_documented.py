"""docs/validation.md: its test runs between two hosts, its file of expectations can be read, its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hosts import PYTEST, TOKEN, Hosts, Run
from pyfab.cli import parser
from pyfab.testing._expect import Expectation, load

PAGE = (Path(__file__).parents[2] / "docs" / "validation.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.replace("\\\n", ""), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_test(hosts: Hosts, run: Run, tmp_path: Path) -> None:
    """With the options of the command beside it, the names of host and card replaced by those of the bench."""
    (test,) = blocks("python")
    (tmp_path / "test_mine.py").write_text(test)
    (command,) = (line for block in blocks("sh") for line in block.splitlines() if " pytest " in line)
    words = shlex.split(command.replace("nodeb:29480", hosts.agent).replace("eth0", "r0"))
    start = words.index("pytest") + 1
    status, said = run(hosts.here, PYTEST, *words[start:], PYFAB_TOKEN=TOKEN)
    assert status == 0, said
    assert "2 passed" in said


def test_the_expectations(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "expect.toml").write_text(text)
    assert load(tmp_path / "expect.toml") == [
        Expectation("put", 8, 3.0, None, "verbs:*"),
        Expectation("get", 1 << 20, None, 11.0),
    ]


def test_the_commands() -> None:
    """As far as their options go: hosts and cards are examples."""
    lines = [line.partition("pyfab ")[2] for block in blocks("sh") for line in block.splitlines()]
    parsed = [parser().parse_args(shlex.split(line)) for line in lines if line]
    assert [options.command for options in parsed[:2]] == ["agent", "validate"]
    assert parsed[-1].drills == "kill,stop,resume" and parsed[-1].files == ["test_mine.py"]


def test_every_option_is_told() -> None:
    commands = next(action for action in parser()._actions if action.dest == "command")
    for action in commands.choices["validate"]._actions:  # type: ignore[index, union-attr]
        for name in action.option_strings:
            assert name in ("-h", "--help", "--token", "--token-file") or name in PAGE, name
