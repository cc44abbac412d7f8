"""The exchange of Alltoallv: the call of its kernel, and arguments of host counts."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import FIXED, AlltoallvArgs
from .calls import announced_call
from .transports import choose_announced

# Only the device has the bytes that a pair of ranks moves.
choose = choose_announced("alltoallv")


class FixedCounts(NamedTuple):
    """Buffers with counts and displacements on the host, in bytes.

    The ranks' datatypes may differ. In place both buffers are one.
    """

    send: Buffer
    recv: Buffer
    send_counts: list[int]
    send_displs: list[int]
    recv_counts: list[int]
    recv_displs: list[int]

    def pack(self, *, drops: bool = False) -> bytes:
        """Pack the kernel's arguments.

        Receiving more than the counts is an error, unless the call `drops` the rest.
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


def exchange_call(arguments: bytes, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]) -> Call:
    """Return the call of an exchange; `arguments` is a packed `AlltoallvArgs`."""
    return announced_call("Alltoallv", choose, arguments, buffers, signature)
