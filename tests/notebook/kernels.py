"""A Jupyter kernel of the interpreter that runs the tests, whatever kernels the machine knows."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

TIMEOUT = 60


def of_this_python(manager: Any) -> Any:
    """A class of kernel managers like `manager` that starts this interpreter."""
    from jupyter_client.kernelspec import KernelSpec

    class ThisPython(manager):  # type: ignore[misc]
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    return ThisPython


class Cell:
    """What a cell did."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.error: str | None = None
        for message in messages:
            if message["msg_type"] == "error":
                self.error = "\n".join(message["content"]["traceback"])

    def text(self, stream: str = "stdout") -> str:
        """What it printed."""
        return "".join(
            message["content"]["text"]
            for message in self.messages
            if message["msg_type"] == "stream" and message["content"]["name"] == stream
        )

    def data(self) -> list[dict[str, Any]]:
        """What it displayed, by type."""
        kinds = ("display_data", "execute_result")
        return [message["content"]["data"] for message in self.messages if message["msg_type"] in kinds]


class Kernel:
    """A running kernel; `run` gives it one cell."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self.manager: Any = of_this_python(KernelManager)()
        self.manager.start_kernel()
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def start(self, source: str) -> str:
        """Begins a cell; `finish` waits for it."""
        request: str = self.client.execute(source)
        return request

    def finish(self, request: str) -> Cell:
        messages: list[dict[str, Any]] = []
        for message in self.messages():
            if message["parent_header"].get("msg_id") == request:
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
                messages.append(message)
        return Cell(messages)

    def run(self, source: str) -> Cell:
        return self.finish(self.start(source))

    def messages(self) -> Iterator[dict[str, Any]]:
        """All that the kernel tells, of whichever cell, until nothing came for a minute."""
        while True:
            try:
                yield self.client.get_iopub_msg(timeout=TIMEOUT)
            except queue.Empty:
                raise TimeoutError(f"the kernel said nothing for {TIMEOUT} s") from None

    def children(self) -> list[psutil.Process]:
        """Processes that cells have started and left running."""
        found: list[psutil.Process] = psutil.Process(self.manager.provisioner.pid).children(recursive=True)
        return found

    def no_children(self) -> bool:
        """Whether all of them end."""
        limit = time.monotonic() + TIMEOUT
        while self.children() and time.monotonic() < limit:
            time.sleep(0.01)
        return not self.children()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.manager.interrupt_kernel()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def executed(path: Path, folder: Path) -> Any:
    """A notebook with the outputs that it has when it runs from top to bottom in a new kernel, in `folder`."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=2 * TIMEOUT,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        kernel_manager_class=of_this_python(AsyncKernelManager),
    )
    metadata = dict(notebook.metadata)
    client.execute()
    notebook.metadata = metadata  # without what depends on the kernel
    return notebook
