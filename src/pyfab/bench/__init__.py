"""Measurements as functions that return tables: latency, bandwidth and rate between two processes or two machines.

table = pyfab.bench.latency("shm+tcp", sizes=[8, 4096])          # a second process is started here
table = pyfab.bench.bandwidth("tcp", peer="10.0.0.5:4500", token="secret")  # 10.0.0.5 runs: pyfab bench --listen 10.0.0.5:4500
table.plot().savefig("bandwidth.png")                            # matplotlib, the extra pyfab-rdma[plot]
table.save("run.json")
pyfab.bench.latency().compare(pyfab.bench.load("run.json"))

A table shows itself in terminals and notebooks; `records()` gives plain dictionaries. `facts` describes the machines that were
measured.
"""

from __future__ import annotations

from pyfab.bench._facts import machine_facts
from pyfab.bench._measurement import Measurement
from pyfab.bench._pair import Listener
from pyfab.bench._results import Comparison, Measurements, Ratio, load
from pyfab.bench._runs import bandwidth, latency, measure, message_rate

__all__ = [
    "Comparison",
    "Listener",
    "Measurement",
    "Measurements",
    "Ratio",
    "bandwidth",
    "latency",
    "load",
    "machine_facts",
    "measure",
    "message_rate",
]
