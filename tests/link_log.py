"""The lines of the log `pyfab.links`, in the tests' process or in a peer's."""

from __future__ import annotations

import logging
import time

LOG = "pyfab.links"


class LinkLog(logging.Handler):
    """Collects the lines from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger(LOG).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def wait_for(self, least: int) -> list[str]:
        """All lines, as soon as there are so many; the ones there are after 30 seconds."""
        deadline = time.monotonic() + 30
        while len(self.lines) < least and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.lines
