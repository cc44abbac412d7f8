"""The exchange of Alltoallv: its kernel's call, and its arguments where the counts are on the host."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import FIXED, AlltoallvArgs
from .calls import announced_call
from .transports import choose_announced

choose = choose_announced("alltoallv")  # how much a pair of ranks moves is on the device only


def exchange_call(arguments: bytes, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]) -> Call:
    """The call of the exchange that `arguments`, a packed `AlltoallvArgs`, describe."""
    return announced_call("Alltoallv", choose, arguments, buffers, signature)


def fixed_arguments(
    send: Buffer,
    recv: Buffer,
    *,
    send_counts: list[int],
    send_displs: list[int],
    recv_counts: list[int],
    recv_displs: list[int],
) -> bytes:
    """The kernel's arguments where the counts are on the host. Counts and displacements are in bytes on all ranks,
    since their datatypes need not be the same.
    """
    return AlltoallvArgs(
        send=send.address,
        recv=recv.address,
        row_nbytes=1,
        send_rows=send.nbytes,
        placement=FIXED,
        fixed_send_counts=send_counts,
        fixed_send_displs=send_displs,
        fixed_recv_counts=recv_counts,
        fixed_recv_displs=recv_displs,
    ).pack()
