"""Two ranks train a small network on handwritten digits and publish its weights; three others pull and use them meanwhile.

    python examples/publish_weights.py [--steps 300] [--plot weights.png]

Each trainer publishes half of each tensor, the users pull whole ones. What is printed: which versions the users had, how well
these did, and how long it took to get one. --plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import time
from importlib.resources import files
from typing import Any

import numpy as np
import pyfab
from pyfab.weights import Publisher, Reader, Shard

TRAINERS, USERS = 2, 3
SHAPES = {"hidden": (64, 48), "output": (48, 10)}


def digits() -> tuple[Any, Any]:
    with np.load(str(files("pyfab.datasets") / "digits.npz")) as stored:
        return stored["images"].reshape(-1, 64).astype(np.float32) / 16, stored["labels"].astype(np.int64)


def forward(weights: dict[str, Any], images: Any) -> tuple[Any, Any]:
    hidden = np.maximum(images @ weights["hidden"], 0)
    scores = hidden @ weights["output"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, scores / scores.sum(1, keepdims=True)


def gradients(weights: dict[str, Any], images: Any, labels: Any) -> dict[str, Any]:
    hidden, chances = forward(weights, images)
    chances[np.arange(len(labels)), labels] -= 1
    back = (chances @ weights["output"].T) * (hidden > 0)
    return {"hidden": images.T @ back / len(labels), "output": hidden.T @ chances / len(labels)}


def train(group: pyfab.Group, team: pyfab.Group, steps: int) -> None:
    """Data parallel: each trainer has all weights, of which it publishes its half of the rows, in place."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()}
    halves = {}
    for name, (rows, _) in SHAPES.items():
        start = rows * team.rank // team.size
        stop = rows * (team.rank + 1) // team.size
        halves[name] = Shard(weights[name][start:stop], (start, 0), SHAPES[name])
    publisher = Publisher(group, halves, checksums=True)
    images, labels = (part[:1500] for part in digits())
    random = np.random.default_rng(team.rank)
    for step in range(1, steps + 1):
        batch = random.integers(len(images), size=64)
        for name, slope in gradients(weights, images[batch], labels[batch]).items():
            weights[name] -= 0.5 * team.allreduce(slope) / team.size
        publisher.publish(step)


def use(group: pyfab.Group, steps: int) -> list[tuple[int, float, float]]:
    """Version, share of digits that it knows, and seconds until it was there, until the last version came."""
    reader = Reader(group)
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    plan = reader.plan(weights)
    images, labels = (part[1500:] for part in digits())
    seen: list[tuple[int, float, float]] = []
    version = 0
    while version < steps:
        began = time.perf_counter()
        version = reader.pull(weights, plan=plan, newer_than=version)
        took = time.perf_counter() - began
        seen.append((version, float((forward(weights, images)[1].argmax(1) == labels).mean()), took))
    return seen


def work(group: pyfab.Group, steps: int) -> Any:
    team = group.split(int(group.rank < TRAINERS))
    with team:
        return train(group, team, steps) if group.rank < TRAINERS else use(group, steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", help="a file for the picture")
    options = parser.parse_args()
    users = pyfab.spawn(work, TRAINERS + USERS, options.steps)[TRAINERS:]
    for number, seen in enumerate(users):
        version, known, _ = seen[-1]
        median = 1e6 * float(np.median([took for _, _, took in seen]))
        print(
            f"user {number}: {len(seen)} of {version} versions, {median:.0f} µs to wait for one and pull it; the first"
            f" knew {seen[0][1]:.0%} of the digits, the last {known:.0%}"
        )
    if options.plot:
        import matplotlib.pyplot as plt

        figure, (above, below) = plt.subplots(2, sharex=True)
        for number, seen in enumerate(users):
            versions, known, took = zip(*seen, strict=True)
            above.plot(versions, known, ".", label=f"user {number}")
            below.semilogy(versions, 1e6 * np.array(took), ".")
        above.set_ylabel("digits known")
        above.legend()
        below.set(xlabel="version", ylabel="µs to wait for and pull it")
        figure.savefig(options.plot)


if __name__ == "__main__":
    main()
