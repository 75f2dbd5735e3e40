"""Four machines of four ranks each, all with all, while packets are lost and cards go down and up again."""

from __future__ import annotations

import os
import random
import threading

import pytest
from netns import Bench, finish

NODES, RANKS, RAILS = 4, 4, 2
SECONDS = float(os.environ.get("FAB_SECONDS", 5))  # of traffic

RANK = """
import time
import numpy as np, pyfab

spec, seconds = sys.argv[1], float(sys.argv[2])
WORDS = 2048


def pattern(sender, receiver, turn):
    return np.arange(WORDS) * 1_000_003 + sender * 1_009 + receiver * 31 + turn


with (
    pyfab.Group.from_env(domain={"spec": spec, "peer_deadline": 60}, timeout=100) as group,
    group.window(shape=(group.size, WORDS), dtype=np.int64) as memory,
    group.window(shape=2, dtype=np.int64) as sums,
):
    print("started", flush=True)
    me, endpoint = group.rank, group.endpoint
    until, turn, going = time.monotonic() + seconds, 0, True
    landing = np.zeros((group.size, 2), np.int64)
    while going:
        receives = [endpoint.trecv(landing[peer], 100 + peer, peer=peer) for peer in group.peers]
        order = [(me + step) % group.size for step in range(1, group.size)]
        puts = [memory[peer].put(pattern(me, peer, turn), np.s_[me]) for peer in order]
        sends = [endpoint.tsend(np.array([turn, me * turn]), peer, 100 + me) for peer in order]
        adds = [sums[peer].accumulate(me + 1, 0) for peer in order]
        for operation in (*puts, *sends, *adds, *receives):
            operation.result(100)
        for peer in group.peers:
            assert landing[peer].tolist() == [turn, peer * turn], (turn, peer, landing[peer])
        back = np.empty(WORDS, np.int64)
        for peer in order[:2]:
            memory[peer].get(back, np.s_[me]).result(100)
            assert (back == pattern(me, peer, turn)).all(), (turn, peer)
        turn += 1
        if turn % 4 == 0:
            going = max(group.allgather(time.monotonic() < until))
    group.barrier()
    assert sums[me][0] == turn * sum(peer + 1 for peer in group.peers)
    for peer in group.peers:
        assert (memory[me][peer] == pattern(peer, me, turn - 1)).all(), peer
    links = {link.link.partition(".")[0] for link in group.links()}
    assert links == {"shm", "tcp"}, links
    group.barrier()
    print(turn)
"""


def trouble(bench, stop):
    """One card at a time goes down, never the last one of its node, and comes back."""
    chance = random.Random(1)
    while not stop.wait(0.3):
        node, rail = bench.node(chance.randrange(NODES)), chance.randrange(RAILS)
        node.link_down(rail)
        stop.wait(chance.uniform(0.2, 1.5))
        node.link_up(rail)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 200)
def test_all_with_all_through_loss_and_failing_cards():
    with Bench(nodes=NODES, rails=RAILS) as bench:
        for node in range(NODES):
            for rail in range(RAILS):
                bench.node(node).drop(rail, 3)
        ranks = [
            bench.node(rank // RANKS).popen(
                RANK,
                "shm+tcp:r0,r1",
                str(SECONDS),
                PYFAB_RANK=str(rank),
                PYFAB_SIZE=str(NODES * RANKS),
                PYFAB_RENDEZVOUS=f"tcp://{bench.node(0).address()}:29400",
                OMP_NUM_THREADS="1",
            )
            for rank in range(NODES * RANKS)
        ]
        for rank in ranks:
            assert rank.stdout.readline() == "started\n"
        stop = threading.Event()
        troubling = threading.Thread(target=trouble, args=(bench, stop))
        troubling.start()
        try:
            turns = {finish(rank, SECONDS + 150) for rank in ranks}
        finally:
            stop.set()
            troubling.join()
        assert len(turns) == 1, turns
        print("turns:", *turns)
