"""Reports of who is reached over which link, from all ranks of a job on several machines."""

from __future__ import annotations

import json

import pytest
from netns import Bench, finish

COMMAND = "from pyfab.__main__ import main\nsys.exit(main(sys.argv[1:]))"


def run_job(bench, *arguments):
    """What each of two ranks on each of two nodes prints."""
    ranks = [
        bench.node(rank // 2).popen(
            COMMAND,
            *arguments,
            PYFAB_RANK=str(rank),
            PYFAB_SIZE="4",
            PYFAB_RENDEZVOUS=f"tcp://{bench.node(0).address()}:29400",
            FI_LNX_PROV_LINKS="shm+tcp:r0",
            COLUMNS="200",
        )
        for rank in range(4)
    ]
    return [finish(rank) for rank in ranks]


@pytest.mark.slow
def test_a_job_shows_its_links():
    with Bench(nodes=2) as bench:
        told, *silent = run_job(bench, "links", "--job", "--json")
        assert silent == [""] * 3
        tables = json.loads(told)
        for rank in range(4):
            rows = {row["peer"]: row for row in tables[str(rank)]}
            assert sorted(rows) == [peer for peer in range(4) if peer != rank]
            for peer, row in rows.items():
                local = peer // 2 == rank // 2
                assert row["link"] == ("shm.0" if local else "tcp.0")
                assert row["host"] == f"node{peer // 2}"
                if local:
                    assert row["why"] == "same node"
                else:
                    assert row["how"].startswith(bench.node(peer // 2).address())
                    assert "other host" in row["why"], "why not shared memory"
        told, *_ = run_job(bench, "links", "--job")
        assert "links of rank 3" in told
        assert "cannot" not in told
