"""The modes of registration, and what the tests of them share."""

from __future__ import annotations

import mmap

import numpy as np
from pyfab import MRMode
from support import TIMEOUT

PAGE = mmap.PAGESIZE
BITS = [
    MRMode.LOCAL,
    MRMode.RAW,
    MRMode.VIRT_ADDR,
    MRMode.ALLOCATED,
    MRMode.PROV_KEY,
    MRMode.MMU_NOTIFY,
    MRMode.RMA_EVENT,
    MRMode.ENDPOINT,
]
ONE = np.ones(1, np.int64)


def error_of(operation):
    return operation.exception(TIMEOUT)


def bind_and_enable(target, name):
    region = target.kept[name].region
    region.bind(target.endpoint)
    region.enable()


def end_sibling(target):
    target.kept.pop("sibling").close()
