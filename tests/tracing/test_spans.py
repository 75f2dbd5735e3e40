"""Spans of OpenTelemetry: every operation once, in the span that it was started in, with what it was and how it ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyfab
import pytest

telemetry = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")


@pytest.fixture
def kept() -> Iterator[tuple]:
    """A provider of tracers, and the spans that have ended."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = telemetry.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter.get_finished_spans
    provider.shutdown()


def test_operations_are_spans_in_the_one_that_started_them(kept):
    provider, ended = kept
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        region = domain.register(np.zeros(8), pyfab.Access.REMOTE_WRITE)
        peer = endpoint.av.insert(endpoint.address)
        began = time.time_ns()
        with pyfab.spans(provider):
            with provider.get_tracer("program").start_as_current_span("step") as step:
                endpoint.put(np.ones(4), peer, region.remote[:4])
                refused = endpoint.read(np.ones(8), peer, region.remote)
                assert isinstance(refused.exception(10), pyfab.AccessDeniedError)
            waiting = endpoint.recv(np.zeros(1))
            with pytest.raises(pyfab.OperationTimeout):
                waiting.result(0.001)
            with pytest.raises(pyfab.BusyError), pyfab.spans(provider):
                pass
        waiting.cancel()
        endpoint.put(np.ones(4), peer, region.remote[:4])  # it is off
    spans = {span.name: span for span in ended()}
    assert spans.keys() >= {"step", "pyfab put", "pyfab read", "pyfab recv", "pyfab Operation.result"}
    assert len([span for span in ended() if span.name == "pyfab put"]) == 1
    put, read, receive = (spans[f"pyfab {name}"] for name in ("put", "read", "recv"))
    assert put.parent.span_id == read.parent.span_id == step.get_span_context().span_id
    assert receive.parent is None
    told = dict(put.attributes)
    assert told.pop("pyfab.context") == f"{endpoint._number}.0" and told.pop("pyfab.how")
    assert told == {"pyfab.peer": peer, "pyfab.link": "shm.0", "pyfab.bytes": 32, "pyfab.outcome": "ok"}
    assert put.kind.name == "CLIENT" and put.status.status_code.name == "UNSET"
    assert (read.status.status_code.name, read.status.description) == ("ERROR", "FI_EACCES")
    assert (receive.attributes["pyfab.peer"], receive.status.description) == ("any", "outstanding")
    for span in ended():
        assert began <= span.start_time <= span.end_time <= time.time_ns()


def test_the_package_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; import pyfab\n"
        "try:\n    with pyfab.spans(): pass\nexcept ImportError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install opentelemetry-api" in ran.stdout
