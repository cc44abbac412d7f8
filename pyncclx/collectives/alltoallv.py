"""Alltoallv: MPI's form, counts on the host of every rank; and the dynamic form, counts on the device."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from .. import devices
from ..buffers import Buffer, on_host, resolve, resolve_dynamic, resolve_vector, where
from ..derived.calls import VECTOR, takes_derived
from ..errors import MPIError
from ..layout import ALLTOALLV, MAX_RANKS, Layout
from .launch import Call, Choice, is_in_place

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

PACKED, SLOTS, FIXED = 0, 1, 2  # enum Placement of cuda/layout.cuh
PLACEMENTS = {"packed": PACKED, "slots": SLOTS}


class Rows(NamedTuple):
    """A buffer as rows: what one index of its first dimension holds."""

    number: int
    nbytes: int  # of one row


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int) -> Choice:
    """All channels: how much a pair of ranks moves is known on the device only."""
    packets = f"packets for pairs of at most {layout.packet_nbytes} bytes"
    why = f"{packets}, longer ones straight to a window or as chunks, decided on the device"
    return Choice("alltoallv", layout.channels, None, why)


@takes_derived("Alltoallv", VECTOR, VECTOR)
def alltoallv(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, layout: str | None = None, total: Any = None, status: Any = None
) -> Call | None:
    """See `Intracomm.Alltoallv`."""
    if layout is not None or total is not None or status is not None or counts_on_device(sendbuf):
        return _dynamic(comm, sendbuf, recvbuf, layout or "packed", total, status)
    return None if on_host(sendbuf, recvbuf) else _static(comm, sendbuf, recvbuf)


def counts_on_device(spec: Any) -> bool:
    """Whether a buffer spec's counts are a device array of some library; a NumPy array never is."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2 or isinstance(spec[1], (str, MPI.Datatype)):
        return False
    counts = spec[1][0] if isinstance(spec[1], tuple) and spec[1] else spec[1]
    return hasattr(counts, "__cuda_array_interface__") or (
        not hasattr(counts, "__array_interface__") and where(counts) == "device"
    )


def _static(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call:
    """MPI's form."""
    device, size = devices.select(), comm.size
    recv, counts, displs = resolve_vector(recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device)
    send, send_counts, send_displs = recv, counts, displs
    if not is_in_place(sendbuf):
        send, send_counts, send_displs = resolve_vector(
            sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device
        )
    itemsize = recv.datatype.itemsize
    if send.datatype.itemsize != itemsize:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"Alltoallv: elements of sendbuf have {send.datatype.itemsize} bytes, of recvbuf {itemsize}; use one size",
        )
    rows = [_in_bytes(values, itemsize) for values in (send_counts, send_displs, counts, displs)]
    return _call(in_bytes(send, recv, *rows), (send, recv), ("static",))


def in_bytes(send: Buffer, recv: Buffer, *rows: list[int]) -> bytes:
    """What the kernel is told of MPI's form. All ranks count in bytes, since their datatypes need not be the same.

    `rows`: send counts, send displacements, receive counts, receive displacements.
    """
    return ALLTOALLV.pack(
        *(send.address, recv.address, 1, send.nbytes, 0),
        *(0, 0, 0, 0, 0, 0),
        FIXED,
        *(number for row in rows for number in (*row, *[0] * (MAX_RANKS - len(row)))),
    )


def _dynamic(comm: Intracomm, sendbuf: Any, recvbuf: Any, layout: str, total: Any, status: Any) -> Call:
    """Counts on the device."""
    if layout not in PLACEMENTS:
        raise ValueError(f"Alltoallv: layout is {layout!r}; it can be 'packed' or 'slots'")
    device, size = devices.select(), comm.size
    send, counts, displs = resolve_dynamic(sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device)
    recv, recv_counts, recv_displs = resolve_dynamic(recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device)
    if counts is None:
        raise ValueError(
            "Alltoallv: sendbuf has no counts; pass [sendbuf, counts] with an int64 device array of counts"
        )
    outputs = {
        "recvbuf counts": recv_counts,
        "recvbuf displs": recv_displs,
        "total": total if total is None else _integers(total, "Alltoallv: total", 1, device),
        "status": status if status is None else _integers(status, "Alltoallv: status", size, device),
    }
    _check_apart(counts, displs, outputs)
    sent, received = _rows(send, "sendbuf", size, slots=False), _rows(recv, "recvbuf", size, slots=layout == "slots")
    if sent.nbytes != received.nbytes:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"Alltoallv: a row of sendbuf has {sent.nbytes} bytes, a row of recvbuf {received.nbytes}; make them equal",
        )
    arguments = ALLTOALLV.pack(
        *(send.address, recv.address, sent.nbytes, sent.number, received.number),
        *(_address(buffer) for buffer in (counts, displs, *outputs.values())),
        PLACEMENTS[layout],
        *[0] * (4 * MAX_RANKS),
    )
    return _call(arguments, (send, recv), (layout, sent.nbytes))


def _call(arguments: bytes, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]) -> Call:
    return Call("Alltoallv", choose, (0,), (), arguments, buffers, signature)


def _rows(buffer: Buffer, name: str, size: int, *, slots: bool) -> Rows:
    """Rows of a buffer; with `slots`, of one slot: the shape is (size, capacity, …) or (size * capacity, …)."""
    shape = buffer.shape
    if slots and len(shape) >= 2 and shape[0] == size:
        return Rows(shape[1], math.prod(shape[2:]) * buffer.datatype.itemsize)
    rows = shape[0] if shape else 1
    if slots and rows % size:
        raise ValueError(
            f"Alltoallv: {name} has {rows} rows, not a multiple of {size} ranks; layout='slots' needs the shape "
            f"({size}, capacity, …) or ({size} * capacity, …)"
        )
    return Rows(rows // size if slots else rows, math.prod(shape[1:]) * buffer.datatype.itemsize)


def _integers(value: Any, name: str, count: int, device: Any) -> Buffer:
    buffer = resolve(value, name, writable=True, device=device)
    if buffer.datatype.name != "int64" or buffer.count != count:
        raise ValueError(f"{name} has {buffer.count} elements of {buffer.datatype.name}; expecting {count} of int64")
    return buffer


def _check_apart(counts: Buffer, displs: Buffer | None, outputs: dict[str, Buffer | None]) -> None:
    """An output that is also an input could be written before every block has read it."""
    inputs = {counts.address, displs.address} if displs else {counts.address}
    for name, buffer in outputs.items():
        if buffer is not None and buffer.address in inputs:
            raise ValueError(f"Alltoallv: {name} is the array that gives sendbuf's counts or displs; pass another one")


def _address(buffer: Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _in_bytes(values: list[int] | Buffer | None, itemsize: int) -> list[int]:
    if not isinstance(values, list):
        raise ValueError(
            "Alltoallv: some counts or displs are on the device and some on the host; give all of them as device "
            "arrays, or all on the host"
        )
    return [itemsize * value for value in values]
