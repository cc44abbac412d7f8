"""Alltoallv: MPI's form, counts on the host of every rank; and the dynamic form, counts on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, on_device, on_host, resolve, resolve_dynamic, resolve_vector
from ..derived.calls import VECTOR, takes_derived
from ..errors import DerivedDatatype, MPIError, NotSupported
from ..launch.call import Call, is_in_place
from ..memory.parameters import FIXED, AlltoallvArgs
from ..numba_kernels import calls as numba
from .alltoallv_options import IN_SLOTS, PLACEMENTS, Wanted
from .alltoallv_segments import Segments, read_segments, segments_call
from .transports import choose_announced, rounded_up_nbytes

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

MOST_ANNOUNCED = 1 << 32  # rows of a sendbuf whose places travel, in half a word, with the counts
OUTPUTS = ("recvbuf counts", "recvbuf displs", "total", "status", "all_lengths of segments")


class Rows(NamedTuple):
    """A buffer as rows: what one index of its first dimension holds."""

    number: int
    nbytes: int  # of one row


class Arrays(NamedTuple):
    """The device arrays of the dynamic form beside the two buffers."""

    send_counts: Buffer
    send_displs: Buffer | None
    recv_counts: Buffer | None
    recv_displs: Buffer | None
    total: Buffer | None
    status: Buffer | None


choose = choose_announced("alltoallv")  # no rank has the lengths that the others send


@takes_derived("Alltoallv", VECTOR, VECTOR)
def alltoallv(comm: Intracomm, sendbuf: Any, recvbuf: Any, **options: Any) -> Call | None:
    """See `Intracomm.Alltoallv`; the options are those of `Wanted`."""
    wanted = Wanted(**options)
    if counts_on_device(sendbuf) or wanted.given:
        return _dynamic(comm, sendbuf, recvbuf, wanted)
    if wanted.algorithm is not None:
        raise NotSupported("Alltoallv: only counts on the device let one choose; leave out algorithm")
    return None if on_host(sendbuf, recvbuf) else _static(comm, sendbuf, recvbuf)


def counts_on_device(spec: Any) -> bool:
    """Whether a buffer spec's counts are a device array of some library; a NumPy array never is."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2 or isinstance(spec[1], (str, MPI.Datatype)):
        return False
    return on_device(spec[1][0] if isinstance(spec[1], tuple) and spec[1] else spec[1])


def _static(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call:
    """MPI's form."""
    device, size = backends.select(), comm.size
    recv, counts, displs = resolve_vector(recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device)
    send, send_counts, send_displs = recv, counts, displs
    if not is_in_place(sendbuf):
        send, send_counts, send_displs = resolve_vector(
            sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device
        )
    rows = [_in_bytes(values, send.datatype.itemsize) for values in (send_counts, send_displs)]
    rows += [_in_bytes(values, recv.datatype.itemsize) for values in (counts, displs)]
    return _call(in_bytes(send, recv, *rows), (send, recv), ("static",))


def in_bytes(send: Buffer, recv: Buffer, *rows: list[int]) -> bytes:
    """What the kernel is told of MPI's form. All ranks count in bytes, since their datatypes need not be the same.

    `rows`: send counts, send displacements, receive counts, receive displacements.
    """
    send_counts, send_displs, recv_counts, recv_displs = rows
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


def _dynamic(comm: Intracomm, sendbuf: Any, recvbuf: Any, wanted: Wanted) -> Call:
    """Counts on the device."""
    device, size, layout = backends.select(), comm.size, wanted.placement
    wanted.check()
    send, recv, arrays = _resolve(sendbuf, recvbuf, wanted, size, device)
    segments = None if wanted.segments is None else read_segments(wanted.segments, size, device)
    _check_apart(arrays, segments, layout)
    sent, received = _rows(send, "sendbuf", size, ""), _rows(recv, "recvbuf", size, layout)
    _check_rows(sent, received, layout)
    addresses = {name: buffer.address for name, buffer in arrays._asdict().items() if buffer is not None}
    arguments = AlltoallvArgs(
        send=send.address,
        recv=recv.address,
        row_nbytes=sent.nbytes,
        send_rows=sent.number,
        capacity=wanted.rows_of(received.number),
        slot_rows=received.number,
        **addresses,
        placement=PLACEMENTS[layout],
        drop=wanted.drops,
    )
    buffers = (send, *[buffer for buffer in arrays if buffer is not None], recv)
    if segments is not None:
        if wanted.algorithm is not None:
            raise NotSupported("Alltoallv: segments have one algorithm; leave out algorithm")
        return segments_call(comm, arguments, buffers, segments, (layout, sent.nbytes))
    if numba.wanted(wanted.algorithm):
        return numba.alltoallv(comm, arguments, buffers, (layout, sent.nbytes))
    return _call(arguments.pack(), buffers, (layout, sent.nbytes))


def _resolve(sendbuf: Any, recvbuf: Any, wanted: Wanted, size: int, device: Any) -> tuple[Buffer, Buffer, Arrays]:
    """The arrays of the dynamic form."""
    try:
        send, counts, displs = resolve_dynamic(sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device)
        recv, recv_counts, recv_displs = resolve_dynamic(
            recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device
        )
    except DerivedDatatype as error:
        text = "Alltoallv: counts on the device take no derived datatypes; give the type of elements"
        raise NotSupported(text) from error
    if counts is None:
        raise ValueError(
            "Alltoallv: sendbuf has no counts; pass [sendbuf, counts] with an int64 device array of counts"
        )
    if wanted.layout == "placed" and recv_displs is None:
        raise ValueError(
            "Alltoallv: recvbuf has no displs, and layout='placed' takes the places from there; pass "
            "[recvbuf, (counts, displs)] with int64 device arrays"
        )
    if displs is not None and wanted.segments is not None:
        raise ValueError("Alltoallv: sendbuf has displs, and segments say where they begin; leave displs out")
    total = None if wanted.total is None else _integers(wanted.total, "Alltoallv: total", 1, device)
    status = None if wanted.status is None else _integers(wanted.status, "Alltoallv: status", size, device)
    return send, recv, Arrays(counts, displs, recv_counts, recv_displs, total, status)


def _check_rows(sent: Rows, received: Rows, layout: str) -> None:
    """Raise unless rows of both buffers are of one length, and not too many."""
    if sent.nbytes != received.nbytes:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"Alltoallv: a row of sendbuf has {sent.nbytes} bytes, a row of recvbuf {received.nbytes}; make them equal",
        )
    if layout == "sender" and sent.number >= MOST_ANNOUNCED:
        raise NotSupported(
            f"Alltoallv: sendbuf has {sent.number} rows; layout='sender' tells places below 2**32: make rows longer"
        )


def _call(arguments: bytes, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]) -> Call:
    return Call(
        operation="Alltoallv",
        choose=choose,
        sized=(rounded_up_nbytes(buffers),),
        arguments=arguments,
        buffers=buffers,
        signature=signature,
    )


def _rows(buffer: Buffer, name: str, size: int, layout: str) -> Rows:
    """Rows of a buffer; in a layout of slots, of one slot: the shape is (size, capacity, …) or (size * capacity, …)."""
    shape, slots = buffer.shape, layout in IN_SLOTS
    if slots and len(shape) >= 2 and shape[0] == size:
        return Rows(shape[1], math.prod(shape[2:]) * buffer.datatype.itemsize)
    rows = shape[0] if shape else 1
    if slots and rows % size:
        raise ValueError(
            f"Alltoallv: {name} has {rows} rows, not a multiple of {size} ranks; layout={layout!r} needs the shape "
            f"({size}, capacity, …) or ({size} * capacity, …)"
        )
    return Rows(rows // size if slots else rows, math.prod(shape[1:]) * buffer.datatype.itemsize)


def _integers(value: Any, name: str, count: int, device: Any) -> Buffer:
    buffer = resolve(value, name, writable=True, device=device)
    if buffer.datatype.name != "int64" or buffer.count != count:
        raise ValueError(f"{name} has {buffer.count} elements of {buffer.datatype.name}; expecting {count} of int64")
    return buffer


def _check_apart(arrays: Arrays, segments: Segments | None, layout: str) -> None:
    """An output that is also an input could be written before every block has read it."""
    inputs: tuple[Buffer | None, ...] = arrays[:2]
    outputs: tuple[Buffer | None, ...] = arrays[2:]
    if layout == "placed":
        inputs, outputs = (*inputs, arrays.recv_displs), (arrays.recv_counts, None, *arrays[4:])
    if segments is not None:
        inputs, outputs = (*inputs, segments.lengths, segments.ids), (*outputs, segments.all_lengths)
    read = {buffer.address for buffer in inputs if buffer is not None}
    for name, buffer in zip(OUTPUTS, outputs, strict=False):
        if buffer is not None and buffer.address in read:
            raise ValueError(f"Alltoallv: {name} is an array that gives counts or displs; pass another one")


def _in_bytes(values: list[int] | Buffer | None, itemsize: int) -> list[int]:
    if not isinstance(values, list):
        raise ValueError(
            "Alltoallv: some counts or displs are on the device and some on the host; give all of them as device "
            "arrays, or all on the host"
        )
    return [itemsize * value for value in values]
