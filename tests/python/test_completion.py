"""Completion, as a shell that evaluates the script offers it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable

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
            '"$function" pyfab "${@: -1}" "${COMP_WORDS[COMP_CWORD-1]}"; printf "%s\\n" "${COMPREPLY[@]}"'
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


def test_other_shells_get_a_script() -> None:
    pytest.importorskip("shtab")
    assert script("zsh").startswith("#compdef pyfab")
    assert "complete pyfab" in script("tcsh")


def test_the_extra_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['shtab'] = None; from pyfab.__main__ import main; "
        "main(['--print-completion', 'bash'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "pip install 'pyfab-rdma[completion]'" in ran.stderr
    assert ran.stdout == ""
