"""``python -m pyfab``: the command ``pyfab``; its parts are in `pyfab.cli`."""

from __future__ import annotations

import sys

from pyfab.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
