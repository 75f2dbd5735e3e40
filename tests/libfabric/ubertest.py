"""What ubertest, a part of fabtests, is asked to try: each set below, in every combination of its values.

python tests/libfabric/ubertest.py > FILE; fi_ubertest & fi_ubertest -u FILE 127.0.0.1
"""

from __future__ import annotations

MESSAGES = ["SEND", "SENDV", "SENDMSG", "SENDDATA", "INJECT", "INJECTDATA"]
PUTS = ["WRITE", "WRITEV", "WRITEMSG", "WRITEDATA", "INJECT_WRITE", "INJECT_WRITEDATA"]
GETS = ["READ", "READV", "READMSG"]
ATOMICS = [
    "ATOMIC",
    "ATOMICV",
    "ATOMICMSG",
    "INJECT_ATOMIC",
    "FETCH_ATOMIC",
    "FETCH_ATOMICV",
    "FETCH_ATOMICMSG",
]
COMPARES = ["COMPARE_ATOMIC", "COMPARE_ATOMICV", "COMPARE_ATOMICMSG"]
FORMATS = [f"FI_CQ_FORMAT_{name}" for name in ("CONTEXT", "MSG", "DATA", "TAGGED")]
WAITS = ["FI_WAIT_NONE", "FI_WAIT_UNSPEC", "FI_WAIT_FD"]


def functions(names: list[str]) -> list[str]:
    """As the configuration calls them."""
    return [f"FT_FUNC_{name}" for name in names]


MATRIX: tuple[dict[str, list[str]], ...] = (
    {
        "test_type": ["FT_TEST_UNIT"],
        "class_function": functions(MESSAGES),
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "av_type": ["FI_AV_TABLE", "FI_AV_MAP"],
        "comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR", "FT_COMP_ALL"],
    },
    {
        "test_type": ["FT_TEST_LATENCY"],
        "class_function": functions(MESSAGES),
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "comp_type": ["FT_COMP_QUEUE"],
        "cq_format": FORMATS[2:],
        "cq_wait_obj": WAITS,
    },
    {
        "test_type": ["FT_TEST_BANDWIDTH"],
        "class_function": functions(["SEND", "SENDMSG"]),
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR"],
        "progress": ["FI_PROGRESS_MANUAL", "FI_PROGRESS_AUTO"],
    },
    {
        "test_type": ["FT_TEST_UNIT"],
        "class_function": functions(PUTS + GETS),
        "test_class": ["FT_CAP_RMA"],
        "comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR"],
        "progress": ["FI_PROGRESS_MANUAL", "FI_PROGRESS_AUTO"],
    },
    {
        "test_type": ["FT_TEST_UNIT"],
        "class_function": functions(ATOMICS),
        "op": ["FI_MIN", "FI_SUM", "FI_LXOR", "FI_BXOR", "FI_ATOMIC_WRITE"],
        "datatype": ["FI_INT8", "FI_UINT32", "FI_INT64", "FI_DOUBLE"],
        "test_class": ["FT_CAP_ATOMIC"],
        "comp_type": ["FT_COMP_QUEUE"],
    },
    {
        "test_type": ["FT_TEST_UNIT"],
        "class_function": functions(COMPARES),
        "op": ["FI_CSWAP", "FI_CSWAP_LT", "FI_MSWAP"],
        "datatype": ["FI_UINT8", "FI_INT32", "FI_UINT64"],
        "test_class": ["FT_CAP_ATOMIC"],
        "comp_type": ["FT_COMP_QUEUE"],
    },
)


def configuration(provider: str = "pyfab") -> str:
    """The file that ubertest reads."""
    common = {"ep_type": ["FI_EP_RDM"]}
    sets = []
    for chosen in MATRIX:
        lines = [
            f"\t{key}: [\n" + "".join(f"\t\t{value},\n" for value in values) + "\t],"
            for key, values in (common | chosen).items()
        ]
        sets.append(
            "{\n"
            + "\n".join([f"\tprov_name: {provider},", *lines, "\ttest_flags: FT_FLAG_QUICKTEST"])
            + "\n}"
        )
    return ",\n".join(sets) + "\n"


if __name__ == "__main__":
    print(configuration(), end="")
