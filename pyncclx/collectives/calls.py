"""Make the calls of operations that move data, and of Alltoallv's exchange."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import FIXED, AlltoallvArgs, MoveArgs
from .transports import Choose, choose_announced


def move_call(
    operation: str, choose: Choose, args: MoveArgs, buffers: tuple[Buffer, ...], root: int | None = None
) -> Call:
    """Return the call of an operation whose message length and root all ranks share."""
    return Call(
        operation=operation,
        choose=choose,
        sized=(args.nbytes,),
        arguments=args.pack(),
        buffers=buffers,
        signature=(f"{args.nbytes} bytes", None if root is None else f"root {root}"),
        root=root,
        moves=True,
    )


def announced_call(
    operation: str,
    choose: Choose,
    arguments: bytes,
    buffers: tuple[Buffer, ...],
    signature: tuple[Any, ...] = (),
    root: int | None = None,
    *,
    moves: bool = True,
) -> Call:
    """Return the call of an operation whose messages carry their lengths.

    Each rank chooses its threads by the length of its own buffers.
    """
    # Rounding the longest buffer up to a power of two keeps the number of plans small.
    nbytes = 1 << max(buffer.nbytes for buffer in buffers).bit_length()
    return Call(
        operation=operation,
        choose=choose,
        sized=(nbytes,),
        arguments=arguments,
        buffers=buffers,
        signature=signature,
        root=root,
        moves=moves,
    )


# The host does not have the other ranks' counts, so messages carry their lengths.
choose_exchange = choose_announced("alltoallv")


class FixedCounts(NamedTuple):
    """Buffers with counts and displacements on the host, in bytes.

    The ranks' datatypes may differ. In place, both buffers are the same one.
    """

    send: Buffer
    recv: Buffer
    send_counts: list[int]
    send_displs: list[int]
    recv_counts: list[int]
    recv_displs: list[int]

    def pack(self, *, drops: bool = False) -> bytes:
        """Pack the kernel's arguments.

        Receiving more than a count is an error, unless the call `drops` the excess.
        """
        return AlltoallvArgs(
            send=self.send.address,
            recv=self.recv.address,
            row_nbytes=1,
            send_rows=self.send.nbytes,
            placement=FIXED,
            drop=drops,
            fixed_send_counts=self.send_counts,
            fixed_send_displs=self.send_displs,
            fixed_recv_counts=self.recv_counts,
            fixed_recv_displs=self.recv_displs,
        ).pack()
