"""How a group synchronises and exchanges bytes: one-sidedly, over its own endpoint.

Every rank has a small control window that the others know. Its cells are written by one peer each:

    cell 0        the number of the barrier that this rank has entered
    cell 1 + 2k, cell 2 + 2k
                  written by rank - 2**k, in turns: the number of the barrier whose round k it has reached, and a mark
    box 0, box 1  what this rank shows the others: length, kind, the number of the barrier that it is for, proof, bytes
    call 0, call 1
                  the number of a barrier, and which method this rank has called there
    view          what this rank shows when the group breaks up: which ranks it takes for alive

Barriers are dissemination barriers: in round k a rank writes to rank + 2**k and waits for rank - 2**k. After log2(size) rounds
every rank has heard of every other. Numbers only grow, and writing one twice changes nothing, so calling a barrier again carries
on one that timed out. A counter of remote writes wakes the rank that waits. Nobody polls, except to find peers that have died.

Asking a peer opens a connection to it. If every waiting rank asked everybody, a group would pay the square of its size. So a rank
asks the one that it waits for; the cells of that rank tell whom it waits for in an earlier round, and so on until a rank that has
not come. At each look one more rank is asked, in turn, since a rank that stays away may know of a death that the others do not.

A mark is made of the name of the method that was called, such as "fence() of window 1". A rank that has met another mark than its
own goes on with `_MIXED`, so that in the end all ranks know whether all have called the same. If they have not, each reads what
the others have called, and raises an error that tells it, after one more barrier: nobody ends before all have read.

The others read what a rank shows between two barriers. The boxes are used in turn, so one barrier per exchange is enough: a rank
that enters barrier n + 1 has read what was shown for barrier n, and box n % 2 is written again only for barrier n + 2. A rank
that timed out while it read goes on reading when the call is repeated.

The proof is an HMAC, under a key made of the group's key, of the bytes, of the barrier, and of whose window it is. So nobody
between two hosts can change what a rank shows, or show again what it showed before: what is read may be a pickle, which is code.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import (
    AccessDeniedError,
    FabricError,
    InvalidArgumentError,
    KeyRejectedError,
    OperationTimeout,
    PeerLostError,
)
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.group.cells import open_region
from pyfab.group.keys import Keys
from pyfab.meeting import views
from pyfab.meeting.ranks import lost_ranks, ranks_text
from pyfab.meeting.sealing import TAG_BYTES

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.endpoint import Endpoint, Operation

_CELLS = 64
_BOX = 4096  # bytes
_BOX_HEAD = 24  # bytes of a box's header: length, kind, number of the barrier
_INLINE = _BOX - _BOX_HEAD - TAG_BYTES
_CALLS_AT = _CELLS * 8 + 2 * _BOX
_CALL = 64  # bytes: the number of the barrier, and the name of the method with zeroes behind it
_VIEW_AT = _CALLS_AT + 2 * _CALL
_MARK_BITS = 16  # of a cell; the number of the barrier stands above them
# All bits of a mark: that of ranks that know that not all have called the same.
_MIXED = (1 << _MARK_BITS) - 1
_SHOWN, _REGION = 0, 1  # kinds: the bytes themselves, or their SHA-256 and the region that holds them
_DIGEST = 32
_ANSWER = 0.01  # seconds that a peer has to answer before the next is looked at
# A rank that waits asks for signs of life again and again. The seconds between two looks grow with the number of ranks, as all
# of them may ask, and with the time waited; they have a lower and an upper limit.
_LOOK, _LONGEST = 0.25, 2.0  # the limits
_PER_RANK = 0.004  # seconds for each rank
_SHARE = 0.05  # share of the time waited
# These errors tell that a rank is dead or that its group is closed. Any other error, such as a lack of memory or of descriptors,
# is this process's own and tells nothing about the rank.
GONE = (PeerLostError, KeyRejectedError, AccessDeniedError)
_NAMED = 64  # how many ranks are asked at most, to name those that did not come


class Control:
    """The control window of one rank; made by its group. Calls are collective, from one thread at a time.

    `capacity` is the number of ranks that a view has room for. It must be the same on all ranks, as must be the secret of `keys`.
    """

    def __init__(self, domain: Domain, endpoint: Endpoint, capacity: int, keys: Keys) -> None:
        self._domain, self._endpoint, self.rank, self.size = domain, endpoint, 0, 1
        self._handles: tuple[int, ...] = ()
        self._keys = keys
        memory = domain.alloc(_VIEW_AT + views.HEAD + capacity, np.uint8)
        self._cells: NDArray[np.uint64] = memory[: _CELLS * 8].view(np.uint64)
        self._boxes = memory[_CELLS * 8 : _CALLS_AT].reshape(2, _BOX)
        self._calls: memoryview = memory[_CALLS_AT:_VIEW_AT].data
        self._view = memory[_VIEW_AT:]
        self._arrivals = domain.counter()
        # Others write these words while this rank looks at them, so no cache may stand between.
        self._region = open_region(
            domain, memory, Access.REMOTE, self._arrivals, coherent=True, auth_key=keys.regions
        )
        self._remotes: list[RemoteRegion] = []
        self._windows: list[bytes] = []  # the same as bytes, which say whose window a proof is for
        self.identity = b""  # 32 bytes that no other group has, the same on all ranks
        self._barrier = 0  # barriers that this rank has left
        self._called = (0, "")  # the barrier that this rank entered last, and by which method
        self._late = 0  # the number of a barrier() that timed out; this rank showed nothing for it
        # The barrier in which a rank was last found dead, and what was raised.
        self._lost: tuple[int, str | None] = (0, None)
        # Whether the last call met the others, but timed out while it read what they show.
        self._unread = False
        self._shown = (0, b"")  # the barrier for which a box was last filled, and what the others find there
        self._large: list[MemoryRegion | None] = [None, None]  # what the boxes refer to
        self._asked = 0  # the rank that was asked last during a long wait; the next one follows
        # Reads that peers have not answered yet, by rank and by place in its window.
        self._questions: dict[tuple[int, int], tuple[Operation, NDArray[np.uint8]]] = {}

    @property
    def remote(self) -> bytes:
        """The description by which other ranks reach this window."""
        return self._region.remote.to_bytes()

    def connect(
        self, rank: int, remotes: list[RemoteRegion], handles: tuple[int, ...], generation: int = 0
    ) -> None:
        """Takes everyone's `remote` and handle in the address vector, by rank, before the first call.

        `generation`, below 2**15, is the same on all ranks. It is higher than that of a former group that had some of these
        control windows. The barriers of that group had lower numbers, so what it left in the cells never counts as an arrival.
        """
        self._barrier = max(self._barrier, generation << 32)
        self.rank, self.size, self._handles = rank, len(remotes), handles
        self._windows = [remote.to_bytes() for remote in remotes]
        self.identity = hashlib.sha256(b"".join(self._windows)).digest()
        self._remotes = [remote.view(np.uint8, (remote.nbytes,)) for remote in remotes]

    def show_view(self, number: int, alive: Iterable[int], successor: bytes) -> None:
        """Shows which ranks this one takes for alive, and where the control window of its next group is. Local."""
        views.show(self._view, number, alive, successor)

    def show_settled(self, word: int) -> None:
        """Shows `View.settled`. Local."""
        views.show_settled(self._view, word)

    def come_through(self) -> None:
        """All ranks have come to the first barrier, whether or not this one got through it. Local."""
        self._barrier = self._called[0]
        self.show_settled(views.SETTLED)

    def give_up(self, alive: Iterable[int]) -> None:
        """Shows that this rank has found others dead, and which it takes for alive. So nobody waits for it, or for the dead."""
        self.show_view(0, alive, b"")
        self.show_settled(views.GAVE_UP)

    def view_of(self, rank: int) -> views.View | None:
        """What a rank shows. None if it does not answer, or is just writing it. Raises one of GONE if it is gone."""
        if rank == self.rank:
            return views.read(self._view)
        answer = self._question(rank, _VIEW_AT, self._remotes[rank].nbytes - _VIEW_AT, _LOOK)
        return None if answer is None else views.read(answer)

    def barrier(self, timeout: float | None, call: str = "barrier()") -> None:
        """Returns when all ranks have called it. `call` is the method that the program has called, for the others to compare."""
        if self._unread:  # this completes the call that timed out
            self._unread = False
        else:
            try:
                self._meet(timeout, call)
            except OperationTimeout:
                self._late = self._barrier + 1
                raise

    def _meet(self, timeout: float | None, call: str) -> None:
        deadline = Deadline(timeout)
        number = self._barrier + 1
        if self._called[0] == number:  # it is repeated after a time-out, and others have seen the first
            call = self._called[1]
        self._called = (number, call)
        name = call.encode("ascii", "replace")[: _CALL - 8].ljust(_CALL - 8, b"\0")
        at = number % 2 * _CALL
        self._calls[at : at + _CALL] = number.to_bytes(8, "little") + name
        try:
            mark = self._rounds(number, zlib.crc32(call.encode()) % _MIXED, deadline)
        except PeerLostError as error:
            self._lost = number, error.strerror
            raise
        if mark == _MIXED:
            raise self._mixed(number, deadline)

    def _rounds(self, number: int, mark: int, deadline: Deadline) -> int:
        """Meets the others in barrier `number`. Returns `mark` if all came with it, else `_MIXED`."""
        self._cells[0] = number
        message = np.empty(1, np.uint64)
        for k in range((self.size - 1).bit_length()):
            to, source = (self.rank + (1 << k)) % self.size, (self.rank - (1 << k)) % self.size
            cell = 1 + 2 * k + number % 2
            message[0] = number << _MARK_BITS | mark
            operation = self._start(
                to, self._endpoint.write, message, self._remotes[to].bytes(8 * cell, 8 * cell + 8)
            )
            self.settle(to, operation, deadline)
            self._await(source, cell, number, deadline)
            if int(self._cells[cell]) & _MIXED != mark:
                mark = _MIXED
        self._questions.clear()
        self._barrier = number
        return mark

    def _mixed(self, number: int, deadline: Deadline) -> InvalidArgumentError:
        """What to raise when the ranks have called different methods in barrier `number`."""
        at = number % 2 * _CALL
        callers: dict[str, list[int]] = {}
        try:
            for rank in range(min(self.size, _NAMED)):
                if rank == self.rank:
                    shown = bytes(self._calls[at : at + _CALL])
                else:
                    answer = self._question(rank, _CALLS_AT + at, _CALL, _LOOK)
                    shown = b"" if answer is None else answer.tobytes()
                if int.from_bytes(shown[:8], "little") == number:
                    call = ascii(shown[8:].rstrip(b"\0").decode("latin-1"))[1:-1]
                    callers.setdefault(call, []).append(rank)
            self._rounds(number + 1, _MIXED, deadline)
        except FabricError:  # whoever is gone, or late, has called something else all the same
            self._questions.clear()
        told = "; ".join(f"{ranks_text(ranks, self.size)}: {call}" for call, ranks in callers.items())
        return InvalidArgumentError(
            f"the ranks did not call the same collective method. {told}. All call the same ones, in the same order"
        )

    @property
    def coming(self) -> int:
        """The barrier that the next `collect` is for. The one before is over, so what was shown for earlier ones was read."""
        return self._barrier if self._unread else self._barrier + 1

    @property
    def begun(self) -> bool:
        """Whether this rank is within a call that timed out."""
        return self._unread or self._called[0] > self._barrier

    def catch_up(self, number: int, timeout: float | None) -> None:
        """Completes calls that timed out until barrier `number` is over. All ranks do so with the same number."""
        deadline = Deadline(timeout)
        while self.coming <= number:
            with contextlib.suppress(InvalidArgumentError):  # the calls that timed out were not the same
                self.barrier(deadline.remaining())

    def collect(
        self, data: bytes | None, sources: Iterable[int], timeout: float | None, call: str
    ) -> list[bytes]:
        """Shows `data`, unless it is None, and returns what each of `sources` shows. `call` is as in `barrier`."""
        if data is not None:
            self._show(data)
        return self._exchange(sources, data or b"", timeout, call)

    def close(self) -> None:
        """Local: takes the window away from the peers."""
        self._arrivals.close()
        for region in [*self._large, self._region]:
            if region is not None:
                region._end()
        self._large = [None, None]

    # A box is written for the next barrier. It is not written again when a call that timed out is repeated, because ranks that
    # came meanwhile may have read it.
    def _show(self, data: bytes) -> None:
        number = self.coming
        if self._shown == (number, data):
            return
        if self._lost[0] == number:  # no other call can be made in this group
            raise PeerLostError(self._lost[1])
        if self._late == number:
            raise InvalidArgumentError("the last barrier() timed out; repeat it before anything else")
        if self._shown[0] == number:
            raise InvalidArgumentError(
                "the last collective call timed out after it had shown other data, which some ranks may have read already;"
                " repeat it with the same data, or call barrier() first, which completes it"
            )
        which = number % 2
        former, self._large[which] = self._large[which], None
        if former is not None:
            former.close()
        kind, content = _SHOWN, data
        if len(data) > _INLINE:
            region = open_region(
                self._domain,
                np.frombuffer(data, np.uint8),
                Access.REMOTE_READ,
                auth_key=self._keys.regions,
            )
            self._large[which] = region
            kind, content = _REGION, hashlib.sha256(data).digest() + region.remote.to_bytes()
        content = self._keys.proof(*self._shown_by(self.rank, kind, number, content)) + content
        box = self._boxes[which]
        box[:_BOX_HEAD].view(np.uint64)[:] = len(content), kind, number
        box[_BOX_HEAD : _BOX_HEAD + len(content)] = np.frombuffer(content, np.uint8)
        self._shown = (number, data)

    def _exchange(self, ranks: Iterable[int], own: bytes, timeout: float | None, call: str) -> list[bytes]:
        """Meets the others and reads what `ranks` show."""
        if not self._unread:
            self._meet(timeout, call)
        self._unread = True
        try:
            values = self._read(ranks, own, timeout)
        except FabricError as error:
            self._unread = isinstance(error, OperationTimeout)
            raise
        self._unread = False
        return values

    def _read(self, ranks: Iterable[int], own: bytes, timeout: float | None) -> list[bytes]:
        deadline = Deadline(timeout)
        start = _CELLS * 8 + (self._barrier % 2) * _BOX
        values: dict[int, bytes] = {}
        boxes, large = [], []
        for rank in ranks:
            values[rank] = own
            if rank != self.rank:
                boxes.append((rank, *self._look(rank, start, _BOX)))
        for rank, operation, box in boxes:
            self.settle(rank, operation, deadline)
            length, kind, number = map(int, box[:_BOX_HEAD].view(np.uint64))
            if number != self._barrier:
                raise InvalidArgumentError(
                    f"rank {rank} of {self.size} shows nothing, because it called another collective method"
                )
            shown = box[_BOX_HEAD : _BOX_HEAD + min(length, _BOX - _BOX_HEAD)].tobytes()
            proof, values[rank] = shown[:TAG_BYTES], shown[TAG_BYTES:]
            if not self._keys.proves(proof, *self._shown_by(rank, kind, number, values[rank])):
                raise self._forged(rank)
            if kind == _REGION:
                digest, remote = values[rank][:_DIGEST], RemoteRegion.from_bytes(values[rank][_DIGEST:])
                content = np.empty(remote.nbytes, np.uint8)
                started = self.start_read(rank, content, remote)
                large.append((rank, started, content, digest))
        for rank, operation, content, digest in large:
            self.settle(rank, operation, deadline)
            values[rank] = content.tobytes()
            if not hmac.compare_digest(digest, hashlib.sha256(values[rank]).digest()):
                raise self._forged(rank)
        return list(values.values())

    def _shown_by(self, rank: int, kind: int, number: int, content: bytes) -> tuple[bytes, ...]:
        """What a proof is for."""
        return b"shown", self._windows[rank], b"%d %d" % (kind, number), content

    def _forged(self, rank: int) -> AccessDeniedError:
        return AccessDeniedError(
            f"what rank {rank} of {self.size} shows was changed on its way, or is not of that rank: it does not fit"
            " the group's key"
        )

    def _look(self, rank: int, start: int, nbytes: int) -> tuple[Operation, NDArray[np.uint8]]:
        """Starts to read a part of a peer's control window."""
        here = np.zeros(nbytes, np.uint8)
        return self.start_read(rank, here, self._remotes[rank].bytes(start, start + nbytes)), here

    def start_read(self, rank: int, local: NDArray[Any], remote: RemoteRegion) -> Operation:
        """Starts to read memory of a rank, for `settle`."""
        return self._start(rank, self._endpoint.read, local, remote)

    def _start(
        self, rank: int, method: Callable[..., Operation], local: NDArray[Any], remote: RemoteRegion
    ) -> Operation:
        try:
            return method(local, self._handles[rank], remote)
        except PeerLostError as error:
            raise lost_ranks({rank}, error.strerror, self.size) from error

    def settle(self, rank: int, operation: Operation, deadline: Deadline) -> None:
        """Waits for an operation on a rank. OperationTimeout and PeerLostError name the rank."""
        try:
            operation.result(deadline.remaining())
        except OperationTimeout as error:
            raise OperationTimeout(f"rank {rank} of {self.size} did not answer within {deadline}") from error
        except GONE as error:
            raise lost_ranks({rank}, error.strerror, self.size) from error

    def _await(self, source: int, cell: int, number: int, deadline: Deadline) -> None:
        """Waits until `source` has written `number` into `cell`."""
        began = time.monotonic()
        while True:
            # The counter is read before the cell, so what arrives after the look at it ends the wait.
            seen = self._arrivals.value
            if int(self._cells[cell]) >> _MARK_BITS >= number:
                return
            pauses = _LOOK, _PER_RANK * self.size, _SHARE * (time.monotonic() - began)
            look = min(max(pauses), _LONGEST)
            try:
                self._arrivals.wait(seen + 1, deadline.remaining(at_most=look))
            except OperationTimeout:
                last = self._last_in_line(source, number)
                if deadline.over:
                    absent = self._absent([last, *range(self.size)][:_NAMED], number)
                    late = ranks_text(absent, self.size) if absent else f"rank {source}"
                    verb = "did not come" if absent else "came, but did not go on"
                    raise OperationTimeout(f"barrier: {late} {verb} within {deadline}") from None
                self._asked = (self._asked + 1) % self.size
                self._absent([self._asked], number)

    def _last_in_line(self, source: int, number: int) -> int:
        """The last rank of a chain in barrier `number`: `source` waits for one rank, that one for another, and so on.

        PeerLostError if a rank of the chain has died, or if the last rank has found that another has.
        """
        rounds = (self.size - 1).bit_length()
        try:
            for _ in range(rounds):
                cells = self._ask(source)
                if cells is None or cells[0] < number:
                    break
                behind = np.flatnonzero(cells[1 + number % 2 :: 2][:rounds] < number << _MARK_BITS)
                if not len(behind):  # it waits for nobody, maybe because it gave up
                    break
                source = (source - (1 << int(behind[0]))) % self.size
            view = self.view_of(source)
        except GONE as error:
            raise self.losses(source, error) from error
        dead = set(range(self.size)) - view.alive if view is not None and view.tells_deaths else set()
        if dead:
            raise lost_ranks(dead, f"rank {source} found that", self.size)
        return source

    def absent(self) -> list[int]:
        """After a call that timed out: the ranks that are not known to have come to it. PeerLostError if one has died."""
        return [] if self._unread else self._absent(range(self.size)[:_NAMED], self._barrier + 1)

    def _absent(self, ranks: Iterable[int], number: int) -> list[int]:
        """The ranks of `ranks` that are not known to have entered barrier `number`. PeerLostError if one has died."""
        absent = set()
        for rank in ranks:
            try:
                cells = self._ask(rank)
            except GONE as error:
                raise self.losses(rank, error) from error
            if cells is None or cells[0] < number:
                absent.add(rank)
        return sorted(absent)

    def losses(self, first: int, error: FabricError) -> PeerLostError:
        """What to raise when `first` was found dead. It names other dead ranks too, because one of them may be the cause."""
        return lost_ranks(self.gone() | {first}, error.strerror, self.size)

    def gone(self) -> set[int]:
        """The ranks that are found dead. Not all are looked at in a large group."""
        gone = set()
        for rank in range(min(self.size, _NAMED)):
            try:
                self._ask(rank)
            except GONE:
                gone.add(rank)
            except FabricError:  # this process cannot ask any more, so these are the ones found so far
                break
        return gone

    def loss_of(self, rank: int) -> PeerLostError | None:
        """What to raise if a rank was found dead; None if it lives, or does not answer at once."""
        try:
            self._ask(rank)
        except GONE as error:
            return self.losses(rank, error)
        return None

    def _ask(self, rank: int) -> NDArray[np.uint64] | None:
        """A rank's cells. None if it does not answer at once. Raises one of GONE if it is gone."""
        if rank == self.rank:
            return self._cells
        answer = self._question(rank, 0, _CELLS * 8, _ANSWER)
        return None if answer is None else answer.view(np.uint64)

    def _question(self, rank: int, start: int, nbytes: int, patience: float) -> NDArray[np.uint8] | None:
        """A part of a peer's control window. None if the peer does not answer within `patience` seconds.

        A question without an answer stays open, and the next call waits for it. So a stopped rank is asked only once, however
        often it is looked at.
        """
        if (rank, start) not in self._questions:
            self._questions[rank, start] = self._look(rank, start, nbytes)
        operation, answer = self._questions.pop((rank, start))
        try:
            operation.result(patience)
        except OperationTimeout:
            self._questions[rank, start] = operation, answer
            return None
        return answer
