"""Address vectors that insert in the background, and the events that tell how it went."""

from __future__ import annotations

import gc
import socket
import threading

import numpy as np
import pyfab
import pytest
from addresses import BAD, NOTAVAIL, read, some, v4
from pyfab.core.addressing import resolver as resolving


@pytest.fixture(params=["auto", "manual"])
def events(request):
    """(event queue, asynchronous vector) with the library's thread and without."""
    with (
        pyfab.Domain(
            "tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1", progress=request.param
        ) as domain,
        domain.address_vector(asynchronous=True) as av,
        domain.event_queue() as queue,
    ):
        yield queue, av


class TestAsynchronous:
    @pytest.mark.req("AV-54")
    def test_without_a_queue(self, events):
        _, av = events
        for call in (
            lambda: av.insert(some(1)),
            lambda: av.insert_service("127.0.0.1", "80"),
            lambda: av.insert_symmetric("127.0.0.1", 1, "80", 1),
        ):
            with pytest.raises(pyfab.NoEventQueueError):
                call()

    @pytest.mark.req("AV-55")
    def test_what_can_be_bound(self, events):
        queue, av = events
        with pytest.raises(pyfab.InvalidArgumentError):
            av.bind(av._domain.counter())
        with pytest.raises(pyfab.BadFlagsError):
            av.bind(queue, flags=1)
        av.bind(queue)
        with pytest.raises(pyfab.InvalidArgumentError):
            av.bind(queue)

    def test_a_bad_argument_stops_no_later_insertion(self, events):
        queue, av = events
        av.bind(queue)
        av.insert(some(2), fi_addr=[0])
        signed = np.zeros(2, np.int64)
        av.insert([some(1)[0], BAD], fi_addr=signed)
        av.insert_symmetric("127.0.0.1", 1, 7000, 1)
        av.insert_service("a" * 64 + ".invalid", "80")
        av.insert(some(1), context="last")
        while read(queue).context != "last":
            pass
        assert signed[1] == -1
        assert len(av) == 5

    @pytest.mark.req("AV-56", "AV-57", "AV-58", "AV-59", "AV-60", "AV-14", "AV-62")
    def test_errors_then_the_count(self, events):
        queue, av = events
        av.bind(queue)
        out = np.full(5, 7, np.uint64)
        good = some(3)
        assert av.insert([good[0], BAD, good[1], BAD, good[2]], context="mine", fi_addr=out) == 0
        for index in (1, 3):
            for _ in range(2):
                with pytest.raises(pyfab.FabricError) as caught:
                    queue.read(10)
                assert caught.value.name == "FI_EAVAIL"
            error = queue.read_error()
            assert (error.type.name, error.data, error.context, error.errno) == (
                "INSERTED",
                index,
                "mine",
                22,
            )
        event = queue.read(10)
        assert (event.errno, event.context, event.data) == (0, "mine", 3) and event.fid is av
        assert list(map(int, out)) == [0, int(NOTAVAIL), 1, int(NOTAVAIL), 2]
        assert queue.read() is None

    @pytest.mark.req("AV-58")
    def test_one_event_also_for_none(self, events):
        queue, av = events
        av.bind(queue)
        av.insert([], context=1)
        av.insert([BAD], context=2)
        assert [(event.context, event.errno, event.data) for event in (read(queue) for _ in range(3))] == [
            (1, 0, 0), (2, 22, 0), (2, 0, 0),
        ]  # fmt: skip

    @pytest.mark.req("AV-59")
    def test_indices_follow_the_calls(self, events, monkeypatch):
        queue, av = events
        av.bind(queue)
        let_go = threading.Event()

        def slow(*_):
            assert let_go.wait(10)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

        monkeypatch.setattr(resolving, "getaddrinfo", slow)
        av.insert_symmetric("slow", 1, "80", 2, context="first")
        av.insert(some(1), context="second")
        let_go.set()
        assert {read(queue).context, read(queue).context} == {"first", "second"}
        assert [av.lookup(handle) for handle in range(3)] == [
            v4("10.0.0.1:80"),
            v4("10.0.0.1:81"),
            some(1)[0],
        ]

    @pytest.mark.req("AV-61")
    def test_the_rest_is_cancelled(self, domain):
        with (
            domain.address_vector(asynchronous=True, on_error="abort") as av,
            domain.event_queue() as queue,
        ):
            av.bind(queue)
            out = [7] * 4
            av.insert([some(1)[0], BAD, *some(3)[1:]], fi_addr=out)
            entries = [read(queue) for _ in range(4)]
            assert [(e.data, e.name) for e in entries] == [
                (1, "FI_EINVAL"), (2, "FI_ECANCELED"), (3, "FI_ECANCELED"), (1, "FI_SUCCESS"),
            ]  # fmt: skip
            assert out == [0, NOTAVAIL, NOTAVAIL, NOTAVAIL] and len(av) == 1

    @pytest.mark.req("AV-7", "AV-62")
    def test_the_vector_goes_before_its_events_are_read(self, domain):
        with domain.event_queue() as queue:
            av = domain.address_vector(asynchronous=True)
            av.bind(queue)
            av.insert(some(100), fi_addr=[0] * 100, context="still")
            av.close()
            del av
            gc.collect()
            assert (read(queue).context, queue.read()) == ("still", None)
