"""Buffer arguments with one block: an array or mpi4py buffer spec as a `Buffer`."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from . import datatypes
from .checks import Device
from .datatypes import Datatype
from .pointers import reaches
from .readers import read_torch, reader_of
from .specs import is_nothing, no_buffer, spec_parts


@dataclass(slots=True)
class Buffer:
    """Device memory that a caller passed to an operation.

    Attributes
    ----------
    address : int
        Address of the first element, including the displacement.
    count : int
        Elements of `datatype`; elements of one block if the operation has one block for each rank.
    datatype : Datatype
    shape : tuple of int
        Shape of the whole array in its own elements, even if only a part is used. If the buffer was resolved with
        `rows`: shape of the used part, in elements of `datatype`.
    readonly : bool
    stream : int or None
        CUDA stream that produces the data: 1 is the legacy default stream, 2 the per-thread one. None: the current
        stream, for which no wait is needed.
    owner : object
        Object that keeps the memory alive.
    reach : int
        Bytes that the call uses, from the beginning of the owner, if they go beyond the owner's own length. This occurs
        with views and `MPI.buffer` objects. Otherwise 0.
    """

    address: int
    count: int
    datatype: Datatype
    shape: tuple[int, ...]
    readonly: bool
    stream: int | None
    owner: object
    reach: int = field(default=0, kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of `count` elements."""
        return self.count * self.datatype.itemsize

    @property
    def of_torch(self) -> bool:
        """Whether the data was produced on PyTorch's current stream."""
        return self.stream is not None and reader_of(self.owner) is read_torch


def resolve(spec: Any, name: str, *, writable: bool, device: Device, blocks: int = 1, rows: bool = False) -> Buffer:
    """Resolve a plain buffer argument to address, count and datatype.

    Parameters
    ----------
    spec : array, ``[array, count]``, ``[array, datatype]``, ``[array, count, datatype]``, \
``[array, (count, displ), datatype]`` or ``[array, count, displ, datatype]``
        Lists and tuples are equivalent. Count and displacement are in elements; the datatype is an MPI datatype or a
        string.
    name : str
        Operation and argument for error messages, such as ``"Allreduce: recvbuf"``.
    writable : bool
        Whether the operation writes to the buffer.
    device : Device
        The communicator's device.
    blocks : int, default 1
        Number of blocks of equal length, one for each rank; `Buffer.count` is the count of one block.
    rows : bool, default False
        Whether the operation counts rows. A row is what one index of the array's first dimension selects. If true, a
        ValueError is raised if the datatype and the array's elements differ in length, or if the buffer is not whole
        rows.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, MPI.Exception
        The error that mpi4py raises for the same argument. Also ValueError if the elements do not fit into the array,
        or if the array is on another GPU.
    NotSupported
        If the array is in host memory, or the datatype is derived.
    """
    read = reader_of(spec)
    if read is not None:
        address, nbytes, key, shape, readonly, stream, owner = read(spec, name, device)
        if readonly and writable:
            raise _read_only(name)
        datatype = datatypes.of(key)
        count = nbytes // datatype.itemsize
        if blocks > 1:
            count = _block(count, blocks, name)
        return Buffer(address, count, datatype, shape, readonly, stream, owner)
    if not isinstance(spec, (list, tuple)):
        raise no_buffer(spec, name)
    array, count, displ, key = spec_parts(spec, name)
    if displ and isinstance(key, MPI.Datatype) and not key:
        raise ValueError(f"{name} has MPI.DATATYPE_NULL, so its displacement has no unit; name the type")
    buffer = whole_buffer(array, key, name, writable=writable, device=device, divide=count is None, rows=rows)
    _select(buffer, array, count, displ, name, blocks, device)
    if rows:
        buffer.shape = _part(buffer.shape, displ or 0, buffer.count * blocks, name)
    return buffer


def whole_buffer(
    array: Any, key: Any, name: str, *, writable: bool, device: Device, divide: bool, rows: bool = False
) -> Buffer:
    """Return the buffer of a spec's whole array.

    Its count is the number of elements of the spec's datatype that fit. With `divide`, bytes that are left over raise
    ValueError.
    """
    read = reader_of(array)
    if read is None:
        if is_nothing(array):
            return Buffer(0, 0, _datatype(key, name, divide), (0,), False, None, None)
        raise no_buffer(array, name)
    address, nbytes, own, shape, readonly, stream, owner = read(array, name, device)
    if readonly and writable:
        raise _read_only(name)
    datatype = datatypes.of(own) if key is None else _datatype(key, name, divide)
    count, rest = divmod(nbytes, datatype.itemsize)
    if rest and divide:
        raise ValueError(
            f"{name} has {nbytes} bytes, not a multiple of the {datatype.itemsize} of {datatype.name}; "
            "give the count, or an array of whole elements"
        )
    if rows and key is not None and datatype.itemsize != own.itemsize:
        raise ValueError(
            f"{name} has elements of {own.itemsize} bytes and the datatype {datatype.name} of {datatype.itemsize}, so "
            "its rows are not defined; leave out the datatype, or pass a view of the array"
        )
    return Buffer(address, count, datatype, shape, readonly, stream, owner)


def _select(buffer: Buffer, array: Any, o_count: Any, o_displ: Any, name: str, blocks: int, device: Device) -> None:
    """Narrow a whole buffer to the elements that count and displacement select."""
    room = buffer.count
    displ = 0 if o_displ is None else operator.index(o_displ)
    if not 0 <= displ <= room:
        raise ValueError(f"{name} has displacement {displ}, but {room} elements; the displacement counts elements")
    count = _block(room - displ, blocks, name) if o_count is None else operator.index(o_count)
    if count < 0:
        raise ValueError(f"{name} has count {count}; it cannot be negative")
    if count and array is MPI.BOTTOM:
        raise NotSupported(f"{name} is MPI.BOTTOM with absolute addresses; pass the device array itself")
    end_nbytes = (displ + count * blocks) * buffer.datatype.itemsize
    if displ + count * blocks > room:
        if not reaches(array, device, buffer.address, end_nbytes):
            of_blocks = f" in each of {blocks} blocks" if blocks > 1 else ""
            raise ValueError(
                f"{name} has {room} elements of {buffer.datatype.name}, the message {count}{of_blocks} from "
                f"element {displ}; pass a larger array or a smaller count"
            )
        buffer.reach = end_nbytes
    buffer.address += displ * buffer.datatype.itemsize
    buffer.count = count


def _part(shape: tuple[int, ...], displ: int, count: int, name: str) -> tuple[int, ...]:
    """Return the shape, in whole rows, of `count` elements from `displ`."""
    row = math.prod(shape[1:])
    if not shape or count == displ == 0 == row:
        return shape
    if row == 0 or displ % row or count % row:
        raise ValueError(
            f"{name} names {count} elements from element {displ} of an array of shape {shape}; expecting whole rows, "
            f"of {row} elements each"
        )
    return (count // row, *shape[1:])


def _block(count: int, blocks: int, name: str) -> int:
    if count % blocks:
        text = f"each of {blocks} blocks, as many as ranks or partitions, has the same length"
        raise ValueError(f"{name} has {count} elements, not a multiple of {blocks}; {text}")
    return count // blocks


def _datatype(key: Any, name: str, divide: bool) -> Datatype:
    if key is None:
        raise KeyError(f"{name} has no array and no datatype; name the datatype, as in [None, 0, MPI.FLOAT]")
    if not isinstance(key, (MPI.Datatype, Datatype, str)):
        # mpi4py raises these errors because it looks the key up in a dictionary.
        error = KeyError if isinstance(key, Hashable) else TypeError
        raise error(f"{name} has datatype {key!r}; give an MPI datatype or a string such as 'f4'")
    try:
        return datatypes.of(key)
    except MPIError:
        if divide:
            # mpi4py raises ValueError here, because it needs the count before MPI sees the datatype.
            raise ValueError(f"{name} has MPI.DATATYPE_NULL, so its count is unknown; name the type") from None
        raise


def _read_only(name: str) -> BufferError:
    return BufferError(f"{name} is read-only, and the operation writes to it; pass a writable array")
