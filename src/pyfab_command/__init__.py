"""What the console script ``pyfab`` starts. It is a package of its own: importing any part of pyfab imports all of it."""

from __future__ import annotations

import os
import signal


def main() -> int:
    """Runs the command line (`pyfab.cli`). Ctrl-C ends it with status 130 and no traceback, even while it is being imported."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # there is nothing to clean up yet
    from pyfab.cli import main

    signal.signal(signal.SIGINT, former)
    return main()
