"""The exchange of Alltoallv: the call of its kernel, and arguments of host counts."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import FIXED, AlltoallvArgs
from .calls import announced_call
from .transports import choose_announced

# Only the device has the bytes that a pair of ranks moves.
choose = choose_announced("alltoallv")


def exchange_call(arguments: bytes, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]) -> Call:
    """Return the call of an exchange; `arguments` is a packed `AlltoallvArgs`."""
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
    """Return the kernel's arguments from counts on the host.

    Counts and displacements are in bytes, since the ranks' datatypes may differ.
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
