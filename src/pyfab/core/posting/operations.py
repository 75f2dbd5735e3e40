"""The operations of an endpoint, with their arguments and what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pyfab._core import ClaimedMessage, Completion, Context, Operation, Prepared, RemoteRegion
from pyfab.core.enums import ADDR_UNSPEC, InsertFlag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Local: TypeAlias = Any
"""An array or another C-contiguous buffer, a list of buffers, or (region, offset, length)."""
Remote: TypeAlias = "RemoteRegion | tuple[int, int]"
"""A description of a region, or (address, key)."""


class Operations:
    """The operations of an endpoint's first context.

    `local` is an array or another C-contiguous buffer, a list of buffers, or (region, offset, length). It is kept alive, and must
    not change until the operation is done. `peer` is a handle of the address vector. `remote` is a RemoteRegion, or (address,
    key). Offsets and lengths are in bytes. `context` is any object of the program; the Completion brings it back.

    What starts an operation returns an Operation, to be waited for (`result`), awaited, or called back. Wrong arguments raise
    before anything moves: InvalidArgumentError, BoundsError, UnreachableError. What the target refuses, or what is lost on the
    way, is the operation's outcome. A call waits while the path to the peer is full. All are safe from any thread.
    """

    _contexts: list[Context]

    def write(
        self,
        local: Local,
        peer: int,
        remote: Remote,
        data: int | None = None,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts a put of `local` into `remote`; both have the same number of bytes.

        data: 64-bit remote data for the target's completion queue. flags: a Delivery level; by default the bytes are visible at
        the target once the operation is done.
        """
        return self._contexts[0].write(local, peer, remote, data, context, flags)

    def read(
        self,
        local: Local,
        peer: int,
        remote: Remote,
        data: int | None = None,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts a get of `remote` into `local`, which is writable."""
        return self._contexts[0].read(local, peer, remote, data, context, flags)

    def put(self, local: Local, peer: int, remote: Remote, timeout: float | None = None) -> None:
        """Writes `local` into `remote`, and returns when it is visible there. The fastest form.

        timeout: seconds, None waits for ever. OperationTimeout after that; the put may still be carried out. What the target
        refuses is raised: AccessDeniedError, KeyRejectedError, BoundsError, PeerLostError.
        """
        self._contexts[0].put(local, peer, remote, timeout)

    def get(self, local: Local, peer: int, remote: Remote, timeout: float | None = None) -> None:
        """Reads `remote` into `local`, and returns when it is there. The fastest form. Timeout and errors are those of `put`."""
        self._contexts[0].get(local, peer, remote, timeout)

    def inject(
        self,
        local: Local,
        peer: int,
        remote: Remote | None = None,
        data: int | None = None,
        tag: int | None = None,
    ) -> None:
        """Writes at most `info.inject_size` bytes, or, without `remote`, sends them, as a tagged message with `tag`.

        `local` may be used again on return. Success is not told.
        """
        self._contexts[0].inject(local, peer, remote, data, tag)

    def write_many(
        self,
        peer: int,
        remote: Remote,
        local: Local,
        remote_offsets: ArrayLike,
        local_offsets: ArrayLike,
        lengths: ArrayLike,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts many puts as one operation: row i moves lengths[i] bytes from local_offsets[i] to remote_offsets[i].

        Offsets and lengths are arrays of integers; a single number counts for all rows. All rows are checked before anything
        moves. A row that the target refuses fails the operation; the others are done.
        """
        return self._contexts[0].write_many(
            peer, remote, local, remote_offsets, local_offsets, lengths, context, flags
        )

    def read_many(
        self,
        peer: int,
        remote: Remote,
        local: Local,
        remote_offsets: ArrayLike,
        local_offsets: ArrayLike,
        lengths: ArrayLike,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts many gets as one operation; the arguments are those of `write_many`."""
        return self._contexts[0].read_many(
            peer, remote, local, remote_offsets, local_offsets, lengths, context, flags
        )

    def prepare_write(
        self,
        peer: int,
        remote: Remote,
        local: Local,
        remote_offsets: ArrayLike,
        local_offsets: ArrayLike,
        lengths: ArrayLike,
    ) -> Prepared:
        """Prepares what `write_many` starts: rows are checked and put in order once, and started as often as wanted.

        The `Prepared` keeps `local` alive. Nothing is asked of the peer, so a region that has gone is told by the operations.
        """
        return self._contexts[0].prepare_write(peer, remote, local, remote_offsets, local_offsets, lengths)

    def prepare_read(
        self,
        peer: int,
        remote: Remote,
        local: Local,
        remote_offsets: ArrayLike,
        local_offsets: ArrayLike,
        lengths: ArrayLike,
    ) -> Prepared:
        """Prepares what `read_many` starts, as `prepare_write` does."""
        return self._contexts[0].prepare_read(peer, remote, local, remote_offsets, local_offsets, lengths)

    def atomic(
        self,
        op: int,
        operand: ArrayLike,
        peer: int,
        remote: Remote,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts ``remote[i] = op(remote[i], operand[i])``, atomic by element among all atomics of the library on that memory.

        op: an AtomicOp. operand: an array of integers of 1 to 8 bytes, float32 or float64; a number takes the remote dtype.
        InvalidArgumentError for a misaligned target, NotSupportedError for a pair of operation and type that does not exist.
        """
        return self._contexts[0].atomic(op, operand, peer, remote, context, flags)

    def fetch_atomic(
        self,
        op: int,
        operand: ArrayLike,
        result: Local,
        peer: int,
        remote: Remote,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts an `atomic` whose former values come into `result`, an array of the operand's dtype and size."""
        return self._contexts[0].fetch_atomic(op, operand, result, peer, remote, context, flags)

    def compare_atomic(
        self,
        op: int,
        operand: ArrayLike,
        compare: ArrayLike,
        result: Local,
        peer: int,
        remote: Remote,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts ``if compare[i] REL remote[i]: remote[i] = operand[i]``; the former values come into `result`.

        op: AtomicOp.CSWAP for "equal" and its family for other relations, or the masked swap MSWAP.
        """
        return self._contexts[0].compare_atomic(op, operand, compare, result, peer, remote, context, flags)

    def send(
        self,
        local: Local,
        peer: int,
        data: int | None = None,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts to send the bytes of `local` as one message.

        peer: a handle, maybe with a group (`group_addr`) or receive context (`rx_addr`). data: 64 bits that go along. flags:
        Delivery.TRANSMIT, the default: once done, it arrives whatever becomes of this process; DELIVERY: the peer's library has
        taken it in; INJECT: `local` may be used again, and the message is lost if this process dies, but not if it closes the
        endpoint. Messages to one peer match in the order of sending, but those with SendFlag.UNORDERED.
        """
        return self._contexts[0].send(local, peer, data, context, flags)

    def tsend(
        self,
        local: Local,
        peer: int,
        tag: int,
        data: int | None = None,
        context: Any = None,
        flags: int | None = None,
    ) -> Operation:
        """Starts to send a message with a tag of 64 bits; the other arguments are those of `send`."""
        return self._contexts[0].tsend(local, peer, tag, data, context, flags)

    def recv(
        self,
        local: Local,
        peer: int = ADDR_UNSPEC,
        context: Any = None,
        group: int | None = None,
        min_multi_recv: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Operation:
        """Starts to receive a message without a tag into `local`. The result has `nbytes`, `data` and `source`.

        peer: only from there; with flags=InsertFlag.AUTH_KEY it is the handle of an authorization key: only from those who came
        under it. group: only of that peer group; by default the peer's, or 0. min_multi_recv: takes one message after another,
        each with an entry in the queue that tells its `offset`, until fewer bytes than this are free. A message that is longer
        than `local` fills it and ends in TruncatedError.
        """
        return self._contexts[0].recv(local, peer, context, group, min_multi_recv, flags)

    def trecv(
        self,
        local: Local,
        tag: int,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        context: Any = None,
        group: int | None = None,
        min_multi_recv: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Operation:
        """Starts to receive a message with this tag. ignore: bits of the tag that do not matter. The rest is as in `recv`."""
        return self._contexts[0].trecv(local, tag, ignore, peer, context, group, min_multi_recv, flags)

    def peek(
        self,
        tag: int | None = None,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        group: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Completion:
        """Tells `nbytes`, `tag`, `data` and `source` of the oldest waiting message that a receive like this would take.

        tag: None looks among messages without a tag. FabricError (FI_ENOMSG) if none waits.
        """
        return self._contexts[0].peek(tag, ignore, peer, group, flags)

    def claim(
        self,
        tag: int | None = None,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        group: int | None = None,
        flags: InsertFlag | None = None,
    ) -> ClaimedMessage:
        """Takes the message that `peek` would find away from other receives. Its `recv` receives it, its `discard` drops it."""
        return self._contexts[0].claim(tag, ignore, peer, group, flags)

    def discard(
        self,
        tag: int | None = None,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        group: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Completion:
        """Drops the message that `peek` would find, and tells the same of it."""
        return self._contexts[0].discard(tag, ignore, peer, group, flags)

    def cancel(self, context: Any, /) -> None:
        """Takes back the oldest posted receive with this context, which ends in CanceledError.

        FabricError (FI_ENOENT) if there is none.
        """
        self._contexts[0].cancel(context)

    def message_stats(self) -> dict[str, Any]:
        """How many receives and messages wait, waited at most and on average when one more came, and which came first."""
        return self._contexts[0].message_stats()

    def flush(self, peer: int | None = None, timeout: float | None = None) -> None:
        """Waits until everything that was posted to `peer`, or to all, before this call is done.

        timeout: seconds, None waits for ever; OperationTimeout after that.
        """
        self._contexts[0].flush(peer, timeout)


NAMES: tuple[str, ...] = tuple(name for name in vars(Operations) if not name.startswith(("_", "prepare_")))
"""What an endpoint binds to itself. What prepares operations is not, as CPython is slower with more than 30 attributes."""
