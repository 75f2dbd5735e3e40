"""The operations of an endpoint, with their arguments and what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pyfab._core import ClaimedMessage, Completion, Context, Operation, Prepared, RemoteRegion
from pyfab.core.enums import ADDR_UNSPEC, InsertFlag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Local: TypeAlias = Any
"""Local memory: an array or another C-contiguous buffer, a list of buffers, or (region, offset, length)."""
Remote: TypeAlias = "RemoteRegion | tuple[int, int]"
"""Memory of the peer: the description of a region (`MemoryRegion.remote`), or (address, key)."""


class Operations:
    """The operations of an endpoint's first context.

    `local` is an array or another C-contiguous buffer, a list of buffers, or (region, offset, length). The library keeps it
    alive; do not change it before the operation is done. `peer` is a handle of the address vector. `remote` is a RemoteRegion, or
    (address, key). Offsets and lengths are in bytes. `context` is any object; the Completion brings it back.

    A method that starts an operation returns an Operation: call `result`, `await` it, or give it a callback. Wrong arguments
    raise before anything moves: InvalidArgumentError, BoundsError, UnreachableError. If the target refuses the operation, or it
    is lost on the way, its `result` raises that error. A call waits while the path to the peer is full. All are safe from any
    thread.
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

        data: 64-bit remote data for the target's completion queue. flags: a Delivery level. By default, the bytes are visible at
        the target when the operation is done.
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
        """Starts a get of `remote` into `local`, which must be writable."""
        return self._contexts[0].read(local, peer, remote, data, context, flags)

    def put(self, local: Local, peer: int, remote: Remote, timeout: float | None = None) -> None:
        """Writes `local` into `remote`, and returns when the bytes are visible there. The fastest way to put.

        timeout: seconds; None waits for ever. After OperationTimeout the put may still happen. If the target refuses the put, or
        is lost, the call raises AccessDeniedError, KeyRejectedError, BoundsError or PeerLostError.
        """
        self._contexts[0].put(local, peer, remote, timeout)

    def get(self, local: Local, peer: int, remote: Remote, timeout: float | None = None) -> None:
        """Reads `remote` into `local`, and returns when the bytes are there. Timeout and errors are those of `put`."""
        self._contexts[0].get(local, peer, remote, timeout)

    def inject(
        self,
        local: Local,
        peer: int,
        remote: Remote | None = None,
        data: int | None = None,
        tag: int | None = None,
    ) -> None:
        """With `remote`: a put. Without: a message, tagged if `tag` is given. At most `info.inject_size` bytes.

        `local` may be used again when the call returns. There is no completion if it succeeds.
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
        moves. If the target refuses a row, the operation fails, but the other rows are done.
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
        """Prepares a `write_many` that you can start many times. Its rows are checked and put in order only once, here.

        The `Prepared` keeps `local` alive. The peer is not asked here: if its region is closed, the operations fail later.
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
        """Prepares a `read_many` that you can start many times; see `prepare_write`."""
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
        """Starts ``remote[i] = op(remote[i], operand[i])``. For each element it is atomic among all atomics of the library.

        op: an AtomicOp. operand: an array of integers of 1 to 8 bytes, float32 or float64; a single number takes the dtype of
        `remote`. InvalidArgumentError if the target is misaligned, NotSupportedError if the operation does not exist for the
        type.
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
        """Starts an `atomic`, and writes the former values into `result`, an array with the dtype and size of `operand`."""
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
        """Starts ``if compare[i] REL remote[i]: remote[i] = operand[i]``, and writes the former values into `result`.

        op: AtomicOp.CSWAP for the relation "equal", CSWAP_NE, CSWAP_LE, ... for others, or the masked swap MSWAP.
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

        peer: a handle, maybe with a group (`group_addr`) or receive context (`rx_addr`). data: 64 bits that are sent with the
        message. flags: what holds when the operation is done. Delivery.TRANSMIT, the default: the message arrives even if this
        process ends. DELIVERY: the peer's library has the message. INJECT: `local` may be used again; the message may be lost if
        this process ends, unless `close()` could deliver it (docs/messages.md). Messages to one peer match receives in the order
        of sending, except those with SendFlag.UNORDERED.
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
        """Starts to send a message with a tag of 64 bits. The other arguments are those of `send`."""
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

        peer: receives only from this peer. With flags=InsertFlag.AUTH_KEY, `peer` is the handle of an authorization key: receives
        only from those who proved this key. group: receives only from this peer group, by default the group of `peer`, or 0.
        min_multi_recv: receives one message after another, until fewer bytes than this are free; each has an entry in the queue
        with its `offset`. If a message is longer than `local`, it fills `local`, and the operation ends with TruncatedError.
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
        """Starts to receive a message with this tag. ignore: bits of the tag that are not compared. The rest is as in `recv`."""
        return self._contexts[0].trecv(local, tag, ignore, peer, context, group, min_multi_recv, flags)

    def peek(
        self,
        tag: int | None = None,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        group: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Completion:
        """Returns `nbytes`, `tag`, `data` and `source` of the oldest waiting message that such a receive would take.

        tag: None looks at messages without a tag. FabricError FI_ENOMSG if no such message waits.
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
        """Reserves the message that `peek` would find: no other receive can take it. The result has `recv` and `discard`."""
        return self._contexts[0].claim(tag, ignore, peer, group, flags)

    def discard(
        self,
        tag: int | None = None,
        ignore: int = 0,
        peer: int = ADDR_UNSPEC,
        group: int | None = None,
        flags: InsertFlag | None = None,
    ) -> Completion:
        """Drops the message that `peek` would find, and returns what `peek` would return."""
        return self._contexts[0].discard(tag, ignore, peer, group, flags)

    def cancel(self, context: Any, /) -> None:
        """Cancels the oldest posted receive with this context. It ends with CanceledError.

        FabricError FI_ENOENT if there is none.
        """
        self._contexts[0].cancel(context)

    def message_stats(self) -> dict[str, Any]:
        """Statistics of the queues of posted receives and of waiting ("unexpected") messages.

        For both: how many wait now, the most that waited, and the mean when one more came. Also how often the receive came first
        ("met_posted"), and how often the message did ("met_unexpected").
        """
        return self._contexts[0].message_stats()

    def flush(self, peer: int | None = None, timeout: float | None = None) -> None:
        """Waits until all operations are done that were posted to `peer` (None: to all peers) before this call.

        timeout: seconds; None waits for ever. OperationTimeout after that.
        """
        self._contexts[0].flush(peer, timeout)


NAMES: tuple[str, ...] = tuple(name for name in vars(Operations) if not name.startswith(("_", "prepare_")))
"""The methods that an endpoint binds to itself. `prepare_*` are left out: CPython is slower with more than 30 attributes."""
