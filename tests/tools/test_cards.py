"""What is asked of people whose RDMA card is known from simulations only."""

from __future__ import annotations

from typing import Any

import pytest
from pyfab import _core
from pyfab.cli import main
from pyfab.tools.cards import request


def device(name: str, driver: str, provider: str = "verbs") -> dict[str, Any]:
    fields = dict.fromkeys(("fabric", "addr_format", "src_addr", "why"), "")
    return fields | {"provider": provider, "domain": name, "nics": [{"driver": driver}], "usable": True}


FOUND = [
    device("rxe0", ""),
    device("eth0", "mlx5_core", provider="tcp"),
    device("mlx5_0/2", "mlx5_core"),
    device("bnxt_re0", "bnxt_en"),
]


def test_a_report_is_asked_for_cards_alone() -> None:
    assert request(providers=FOUND[:2]) == ""
    asked = request(providers=FOUND)
    assert "rxe0" not in asked
    assert "eth0" not in asked
    assert "`pyfab validate --links verbs:bnxt_re0 --peer HOST --json bnxt_re0.json`" in asked
    assert "--links verbs:mlx5_0/2 --peer HOST --json mlx5_0-2.json" in asked


def test_a_report_that_is_there_is_asked_for_of_the_links_that_were_used() -> None:
    asked = request(["shm+verbs:bnxt_re0|tcp"], "mine.json", FOUND)
    assert "Please send mine.json" in asked
    assert "bnxt_re0" in asked
    assert "mlx5" not in asked
    assert "pyfab validate" not in asked
    assert request(["tcp:eth0"], "mine.json", FOUND) == ""
    both = request(["tcp:eth0", "verbs:bnxt_re0, mlx5_0/1"], providers=FOUND)
    assert both == request(["verbs"], providers=FOUND) == request(providers=FOUND)


@pytest.mark.slow
def test_doctor_asks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_core, "discover", lambda: FOUND)
    assert main(["doctor"]) == 0
    assert "--links verbs:bnxt_re0" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert "Please" not in capsys.readouterr().out


def test_validate_asks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_core, "discover", lambda: FOUND)
    monkeypatch.setattr("subprocess.Popen", lambda *_args, **_more: None)
    monkeypatch.setattr("pyfab.cli.validate.status_of", lambda _process: 1)
    assert main(["validate", "--links", "verbs:bnxt_re0", "--json", "mine.json"]) == 1
    assert "Please send mine.json" in capsys.readouterr().out
    assert main(["validate", "--links", "tcp:eth0"]) == 1
    assert capsys.readouterr().out == ""
