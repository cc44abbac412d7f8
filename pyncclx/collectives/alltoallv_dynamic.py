"""The dynamic form of Alltoallv: the kernel reads counts from device memory."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.vectors import resolve_dynamic
from ..errors import DerivedDatatype, MPIError, NotSupported
from ..launch.call import Call
from ..memory.parameters import PACKED, PLACED, SENDER, SLOTS, AlltoallvArgs
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .alltoallv_segments import Segments, read_segments, segments_call
from .arguments import check_algorithm
from .calls import announced_call, choose_exchange

PLACEMENTS = {"packed": PACKED, "slots": SLOTS, "sender": SENDER, "placed": PLACED}
IN_SLOTS = ("slots", "sender")


class DynamicOptions(NamedTuple):
    """The keyword arguments of Alltoallv's dynamic form (counts on the device)."""

    layout: str | None = None
    capacity: int | None = None
    total: Any = None
    status: Any = None
    overflow: str | None = None
    segments: Any = None
    algorithm: str | None = None

    @property
    def given(self) -> bool:
        """Whether an option was passed that MPI's form does not have."""
        return any(option is not None for option in self[:-1])

    @property
    def drops(self) -> bool:
        """Whether rows that do not fit are dropped without an error."""
        return self.overflow == "drop" if self.overflow else self.status is not None

    @property
    def placement(self) -> str:
        """The placement of rows, a key of `PLACEMENTS`."""
        return self.layout or "packed"

    def check(self) -> None:
        """Raise ValueError if an option has an invalid value."""
        if self.placement not in PLACEMENTS:
            names = "'packed', 'slots', 'sender' or 'placed'"
            raise ValueError(f"Alltoallv: layout is {self.layout!r}; it can be {names}")
        check_algorithm("Alltoallv", self.algorithm, numba.NAME)
        if self.overflow not in (None, "raise", "drop"):
            raise ValueError(f"Alltoallv: overflow is {self.overflow!r}; it can be 'raise' or 'drop'")

    def rows_of(self, room: int) -> int:
        """Return how many of the `room` rows of recvbuf, or of a slot, may be written."""
        if self.capacity is None:
            return room
        capacity = operator.index(self.capacity)
        if not 0 <= capacity <= room:
            where = "a slot of recvbuf" if self.layout in IN_SLOTS else "recvbuf"
            raise ValueError(f"Alltoallv: capacity is {capacity}, and {where} has {room} rows; give 0 to {room}")
        return capacity


# Most rows of a sendbuf with layout="sender": half of a 64-bit word holds the place of a row, the other half the count.
MAX_ANNOUNCED_ROWS = 1 << 32
# The device arrays of a call except the two buffers, by their names in `AlltoallvArgs`.
_Arrays = dict[str, Buffer]


class Rows(NamedTuple):
    """Number of rows of a buffer (with slots: of one slot), and the bytes of a row."""

    number: int
    nbytes: int  # bytes of a row


class DynamicCall(NamedTuple):
    """The checked arguments of a dynamic Alltoallv: counts in device memory."""

    arguments: AlltoallvArgs
    segments: Segments | None
    buffers: tuple[Buffer, ...]
    signature: tuple[Any, ...]
    algorithm: str | None


def dynamic_call(comm: Intracomm, given: DynamicCall) -> Call:
    """Return the call of a dynamic Alltoallv inside a node."""
    arguments, segments, buffers, signature, algorithm = given
    if segments is not None:
        if algorithm is not None:
            raise NotSupported("Alltoallv: segments have one algorithm; leave out algorithm")
        call = segments_call(comm, arguments, buffers, segments, signature)
    elif numba.wanted(algorithm):
        call = numba.alltoallv(comm, arguments, buffers, signature)
    else:
        call = announced_call("Alltoallv", choose_exchange, arguments.pack(), buffers, signature, moves=False)
    call.of_mpi = False
    return call


def resolve_call(comm: Intracomm, sendbuf: Any, recvbuf: Any, options: DynamicOptions) -> DynamicCall:
    """Check and return the arguments of a dynamic Alltoallv."""
    device, size, layout = backends.select(), comm.size, options.placement
    options.check()
    send, recv, arrays = _resolve(sendbuf, recvbuf, options, size, device)
    segments = None if options.segments is None else read_segments(options.segments, size, device)
    _check_apart(arrays, segments, layout)
    sent = _rows(send, "sendbuf", size, "")
    received = _rows(recv, "recvbuf", size, layout, sent.nbytes)
    _check_rows(sent, received, layout)
    addresses: dict[str, Any] = {name: buffer.address for name, buffer in arrays.items()}
    arguments = AlltoallvArgs(
        send=send.address,
        recv=recv.address,
        row_nbytes=sent.nbytes,
        send_rows=sent.number,
        capacity=options.rows_of(received.number),
        slot_rows=received.number,
        **addresses,
        placement=PLACEMENTS[layout],
        drop=options.drops,
    )
    others = list(arrays.values())
    # Each rank may choose its own layout, but "sender" must be the same on all.
    signature = ["counts on the device", f"rows of {sent.nbytes} bytes", "sender" if layout == "sender" else None]
    if segments is not None:
        others += filter(None, segments)
        signature.append(f"{segments.number} segments")
    return DynamicCall(arguments, segments, (send, *others, recv), tuple(signature), options.algorithm)


def _resolve(
    sendbuf: Any, recvbuf: Any, options: DynamicOptions, size: int, device: Any
) -> tuple[Buffer, Buffer, _Arrays]:
    """Return both buffers, and the other arrays of the call."""
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
    if options.layout == "placed" and recv_displs is None:
        raise ValueError(
            "Alltoallv: recvbuf has no displs, and layout='placed' takes the places from there; pass "
            "[recvbuf, (counts, displs)] with int64 device arrays"
        )
    if displs is not None and options.segments is not None:
        raise ValueError("Alltoallv: sendbuf has displs, but segments follow each other; leave displs out")
    total = None if options.total is None else _integers(options.total, "Alltoallv: total", 1, device)
    status = None if options.status is None else _integers(options.status, "Alltoallv: status", size, device)
    arrays = {"send_counts": counts, "send_displs": displs, "recv_counts": recv_counts, "recv_displs": recv_displs}
    arrays |= {"total": total, "status": status}
    return send, recv, {name: buffer for name, buffer in arrays.items() if buffer is not None}


def _check_rows(sent: Rows, received: Rows, layout: str) -> None:
    """Raise if the buffers' rows differ in length, or sendbuf has too many rows."""
    if sent.nbytes != received.nbytes:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"Alltoallv: a row of sendbuf has {sent.nbytes} bytes, a row of recvbuf {received.nbytes}; make them equal",
        )
    if layout == "sender" and sent.number >= MAX_ANNOUNCED_ROWS:
        raise NotSupported(
            f"Alltoallv: sendbuf has {sent.number} rows; layout='sender' supports fewer than 2**32: make rows longer"
        )


def _rows(buffer: Buffer, name: str, size: int, layout: str, sent_nbytes: int = 0) -> Rows:
    """Return the rows of a buffer; in a layout of slots, the rows of one slot.

    With slots the shape is (size, capacity, …) or (size * capacity, …). If the capacity is 1, a shape may fit both
    forms, and the length of a row of sendbuf decides.
    """
    shape, slots = buffer.shape, layout in IN_SLOTS
    if slots and len(shape) >= 2 and shape[0] == size:
        whole = math.prod(shape[1:]) * buffer.datatype.itemsize
        in_slot = math.prod(shape[2:]) * buffer.datatype.itemsize
        return Rows(1, whole) if sent_nbytes == whole != in_slot else Rows(shape[1], in_slot)
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


def _check_apart(arrays: _Arrays, segments: Segments | None, layout: str) -> None:
    """Raise ValueError if an output overlaps another output, or an input.

    Inputs matter, too, because one block of the kernel may write an output while another block still reads the input.
    """
    inputs = ("send_counts", "send_displs", *(["recv_displs"] if layout == "placed" else []))
    read = [buffer for name, buffer in arrays.items() if name in inputs]
    outputs = {name: buffer for name, buffer in arrays.items() if name not in inputs}
    if segments is not None:
        read += [segments.lengths, segments.ids]
        if segments.all_lengths is not None:
            outputs["all_lengths of segments"] = segments.all_lengths
    written: list[Buffer] = []
    for key, buffer in outputs.items():
        name = key.replace("recv_", "recvbuf ")
        if any(_overlap(buffer, each) for each in read):
            raise ValueError(f"Alltoallv: {name} is an array that gives counts or displs; pass another one")
        if any(_overlap(buffer, each) for each in written):
            raise ValueError(f"Alltoallv: {name} overlaps another array that the call writes; pass another one")
        written.append(buffer)


def _overlap(a: Buffer, b: Buffer) -> bool:
    """Return whether two arrays share a byte."""
    return max(a.address, b.address) < min(a.address + a.nbytes, b.address + b.nbytes)
