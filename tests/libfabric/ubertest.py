"""ubertest, a part of fabtests, tries each set below in every combination of its values.

It hands fi_getinfo() the host that it was told, so it runs over the tcp link of those that are there, or over shared memory
alone. Two things that it can be asked for are left out, because they fail through no fault of a provider:

- FT_COMP_ALL, a queue and a counter at once. ubertest empties the queue once the counter has told of an operation, and then
  waits 10 seconds in the queue for the same operation. So it fails over libfabric's own shm and tcp as well, and none of the
  configurations that come with libfabric asks for it.
- A comparison of the entries of messages in pieces (FT_TEST_UNIT with FT_COMP_QUEUE and SENDV or SENDMSG). Two of ubertest's
  four ways to cut 16 bytes into 6 pieces make 17 of them, and then it misses an entry of 16. libfabric's own providers take 4
  pieces. Here, such messages are compared where counters tell of them, and their entries are read, but not compared, in
  `latency`.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from pathlib import Path

import fabtests

MESSAGES = ["SEND", "SENDDATA", "INJECT", "INJECTDATA"]
IN_PIECES = ["SENDV", "SENDMSG"]
PUTS = ["WRITE", "WRITEV", "WRITEMSG", "WRITEDATA", "INJECT_WRITE", "INJECT_WRITEDATA"]
GETS = ["READ", "READV", "READMSG"]
UPDATES = ["ATOMIC", "ATOMICV", "ATOMICMSG", "INJECT_ATOMIC"]
FETCHES = ["FETCH_ATOMIC", "FETCH_ATOMICV", "FETCH_ATOMICMSG"]
COMPARES = ["COMPARE_ATOMIC", "COMPARE_ATOMICV", "COMPARE_ATOMICMSG"]


def functions(names: list[str]) -> list[str]:
    """As the configuration calls them."""
    return [f"FT_FUNC_{name}" for name in names]


BOTH_CLASSES = {"test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"]}
BOTH_TABLES = {"av_type": ["FI_AV_TABLE", "FI_AV_MAP"]}
BOTH_ENDS = {"comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR"]}
BOTH_KINDS_OF_PROGRESS = {"progress": ["FI_PROGRESS_MANUAL", "FI_PROGRESS_AUTO"]}
WAITS = {"cq_wait_obj": ["FI_WAIT_NONE", "FI_WAIT_UNSPEC", "FI_WAIT_FD"]}
UNIT = {"test_type": ["FT_TEST_UNIT"]}
QUEUE = {"comp_type": ["FT_COMP_QUEUE"]}
COUNTER = {"comp_type": ["FT_COMP_CNTR"]}

MATRIX: dict[str, dict[str, list[str]]] = {
    "messages": {
        **UNIT,
        "class_function": functions(MESSAGES),
        **BOTH_CLASSES,
        **BOTH_TABLES,
        **BOTH_ENDS,
    },
    "messages in pieces": {
        **UNIT,
        "class_function": functions(IN_PIECES),
        **BOTH_CLASSES,
        **BOTH_TABLES,
        **COUNTER,
    },
    "messages with chosen entries": {
        **UNIT,
        "class_function": functions(MESSAGES),
        **BOTH_CLASSES,
        **COUNTER,
        "tx_cq_bind_flags": ["FI_SELECTIVE_COMPLETION"],
        "rx_cq_bind_flags": ["FI_SELECTIVE_COMPLETION"],
        "tx_op_flags": ["FI_COMPLETION"],
        "rx_op_flags": ["FI_COMPLETION"],
    },
    "entries chosen by the call": {
        "test_type": ["FT_TEST_LATENCY"],
        "class_function": functions(["SENDMSG"]),
        **BOTH_CLASSES,
        **COUNTER,
        "tx_cq_bind_flags": ["FI_SELECTIVE_COMPLETION"],
        "rx_cq_bind_flags": ["FI_SELECTIVE_COMPLETION"],
        "msg_flags": ["FI_COMPLETION"],
    },
    "latency": {
        "test_type": ["FT_TEST_LATENCY"],
        "class_function": functions(MESSAGES + IN_PIECES),
        **BOTH_CLASSES,
        **QUEUE,
        **WAITS,
    },
    "bandwidth": {
        "test_type": ["FT_TEST_BANDWIDTH"],
        "class_function": functions(["SEND", "SENDMSG"]),
        **BOTH_CLASSES,
        **BOTH_ENDS,
        **BOTH_KINDS_OF_PROGRESS,
    },
    "puts and gets": {
        **UNIT,
        "class_function": functions(PUTS + GETS),
        "test_class": ["FT_CAP_RMA"],
        **BOTH_ENDS,
        **BOTH_KINDS_OF_PROGRESS,
    },
    "atomics": {
        **UNIT,
        "class_function": functions(UPDATES + FETCHES),
        "op": ["FI_MIN", "FI_SUM", "FI_LXOR", "FI_BXOR", "FI_ATOMIC_WRITE"],
        "datatype": ["FI_INT8", "FI_UINT32", "FI_INT64", "FI_DOUBLE"],
        "test_class": ["FT_CAP_ATOMIC"],
        **QUEUE,
    },
    "comparing atomics": {
        **UNIT,
        "class_function": functions(COMPARES),
        "op": ["FI_CSWAP", "FI_CSWAP_LT", "FI_MSWAP"],
        "datatype": ["FI_UINT8", "FI_INT32", "FI_UINT64"],
        "test_class": ["FT_CAP_ATOMIC"],
        **QUEUE,
    },
}


def configuration(name: str, provider: str = "pyfab") -> str:
    """The file that ubertest reads for one set."""
    lists = {"ep_type": ["FI_EP_RDM"], **MATRIX[name]}
    lines = [
        f"\tprov_name: {provider},",
        *(
            f"\t{key}: [\n" + "".join(f"\t\t{value},\n" for value in values) + "\t],"
            for key, values in lists.items()
        ),
        "\ttest_flags: FT_FLAG_QUICKTEST",
    ]
    return "{\n" + "\n".join(lines) + "\n}\n"


def reason() -> str:
    """Why it cannot be run here; empty if it can."""
    if told := fabtests.reason():
        return told
    if fabtests.program("fi_ubertest") is None:
        return "the fabtests that PYFAB_FABTESTS names have no fi_ubertest"
    return "" if shutil.which("stdbuf") else "there is no stdbuf"


def run(name: str, links: str, folder: Path, seconds: float) -> list[str]:
    """Tries one set; returns what ubertest and its two sides say of each combination that failed, or never came."""
    file = folder / "configuration"
    file.write_text(configuration(name))
    port = ["-q", str(fabtests.free_port())]
    # Lines are written as they end, so that those of a program that hangs and is stopped are there.
    line = ["stdbuf", "-oL", str(fabtests.program("fi_ubertest")), *port]
    surroundings = fabtests.environment(links)
    outcome = fabtests.both(
        lambda: fabtests.start([*line, "-x"], surroundings),
        lambda: fabtests.start([*line, "-u", str(file), "127.0.0.1"], surroundings),
        seconds,
    )
    client, server = (
        re.split(r"^Starting test ", side, flags=re.MULTILINE) for side in outcome.text.split("--- server\n")
    )
    failed = [
        f"client: {ours}\nserver: {theirs}"
        for ours, theirs in zip(client[1:], [*server[1:], *[""] * len(client)], strict=False)
        if "result: Success" not in ours or "result: Success" not in theirs
    ]
    count = math.prod(map(len, MATRIX[name].values()))
    if len(client) - 1 != count:
        failed.append(f"{len(client) - 1} of {count} combinations were tried\n{client[0]}\n{server[0]}")
    if not outcome.passed:
        failed.append(f"server {outcome.server}, client {outcome.client}")
    return failed


if __name__ == "__main__":
    print(configuration(*sys.argv[1:]), end="")
