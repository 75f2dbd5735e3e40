"""Completion, as a shell that evaluates the script offers it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Offers = Callable[..., list[str]]


def script(shell: str) -> str:
    command = [sys.executable, "-m", "pyfab", "--print-completion", shell]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(scope="module")
def offers() -> Offers:
    """What bash offers after these words, the last of which is being typed."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    pytest.importorskip("shtab")
    completion = script("bash")

    def offer(*words: str) -> list[str]:
        ask = (
            'eval "$COMPLETION"; complete -p pyfab >/dev/null || exit 9; '
            'COMP_WORDS=(pyfab "$@"); COMP_CWORD=$#; '
            'function=$(complete -p pyfab | sed "s/.*-F \\([^ ]*\\) .*/\\1/"); '
            '"$function" pyfab "${@: -1}" "${COMP_WORDS[COMP_CWORD-1]}"; printf "%s\n" "${COMPREPLY[@]}"'
        )
        ran = subprocess.run(
            [bash, "-c", ask, "bash", *words],
            env={"COMPLETION": completion, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    return offer


def test_commands(offers: Offers) -> None:
    assert offers("pin") == ["pingpong"]
    assert {"demo", "serve", "fetch", "info", "links", "doctor", "bench", "trace"} <= set(offers(""))


def test_options_and_their_values(offers: Offers) -> None:
    assert offers("fetch", "--js") == ["--json"]
    assert set(offers("bench", "--metrics", "")) >= {"latency", "bandwidth", "rate"}
    assert "--listen" not in offers("info", "--")


def test_files(
    offers: Offers, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "rows.npy").touch()
    monkeypatch.chdir(folder)
    assert offers("serve", "ro") == ["rows.npy"]


@pytest.mark.slow
def test_other_shells_get_a_script() -> None:
    shtab = pytest.importorskip("shtab")
    assert script("zsh").startswith("#compdef pyfab")
    assert ":HOST:PORT:" not in script("zsh")  # where PORT would be a command to run
    assert "complete pyfab" in script("tcsh")
    if "fish" in shtab.SUPPORTED_SHELLS:
        assert "complete -c pyfab" in script("fish")


# Types into an interactive zsh, whose `pyfab` shouts what it was called with.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; eval "$COMPLETION"; pyfab() { print -r -- CALLED ${(U)*}; }'
zpty -w shell $'pyfab '$TYPED$'\t--js'$TABS
zpty -r shell said '*CALLED [A-Z]*'$'\n'
print -r -- ${said##*CALLED}
"""


# The first tab shows a hint, where there is one.
@pytest.mark.slow
@pytest.mark.parametrize("typed, tabs", [("inf", "\t"), ("ping", "\t\t"), ("ben", "\t\t")])
def test_zsh_completes(typed: str, tabs: str) -> None:
    pytest.importorskip("shtab")
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh")
    environment = {"COMPLETION": script("zsh"), "TYPED": typed, "TABS": tabs, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [zsh, "-f", "-c", ZSH], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    command, option = ran.stdout.split()
    assert command.startswith(typed.upper()) and command != typed.upper() and option == "--JSON", ran.stderr


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("pyfab pin", ["pingpong"]),
        ("pyfab fetch --js", ["--json"]),
        ("pyfab bench --metrics band", ["bandwidth"]),
        ("pyfab info --listen", []),
        ("pyfab serve ro", ["rows.npy"]),
    ],
)
def test_fish_completes(typed: str, offered: list[str], tmp_path: Path) -> None:
    fish = shutil.which("fish")
    shtab = pytest.importorskip("shtab")
    if fish is None or "fish" not in shtab.SUPPORTED_SHELLS:
        pytest.skip("no fish, or no shtab that knows it")
    (tmp_path / "rows.npy").touch()
    ask = 'eval (string collect -- $COMPLETION); complete -C "$TYPED"'
    ran = subprocess.run(
        [fish, "--no-config", "-c", ask],
        env={"COMPLETION": script("fish"), "TYPED": typed, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line.partition("\t")[0] for line in ran.stdout.splitlines()] == offered, ran.stderr


def test_the_package_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['shtab'] = None; from pyfab.__main__ import main; "
        "main(['--print-completion', 'bash'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "pip install shtab" in ran.stderr
    assert ran.stdout == ""
