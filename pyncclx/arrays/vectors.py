"""Arguments with one block for each rank: buffer, counts and displacements.

Counts and displacements are on the host or the device. Integer arguments are read here, too.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..errors import MPIError
from .buffers import Buffer, resolve, whole_buffer
from .checks import Device
from .datatypes import TABLE
from .places import on_device
from .pointers import precedes, reaches
from .readers import check_c_order, reader_of
from .specs import no_buffer, spec_parts


def resolve_vector(
    spec: Any, name: str, size: int, *, writable: bool, device: Device
) -> tuple[Buffer, list[int] | Buffer, list[int] | Buffer | None]:
    """Return buffer, counts and displacements of an argument with a block per rank.

    Parameters
    ----------
    spec : array, ``[array, counts]``, ``[array, (counts, displs)]``, ``[array, counts, datatype]``, \
``[array, (counts, displs), datatype]`` or ``[array, counts, displs, datatype]``
        One integer as counts is the count of every block; one integer as displs is the distance between blocks.
        Without counts, the array is divided, and the first blocks get the remainder. Without displs, the blocks are
        adjacent. Counts and displs may be device arrays of int64 (an extension of mpi4py).
    name, writable, device
        See `resolve`.
    size : int
        Number of blocks.

    Returns
    -------
    buffer : Buffer
        The whole array: `Buffer.count` is the number of elements that fit. If a block begins before the array, so does
        the buffer.
    counts : list of int, or Buffer
        A `Buffer` for counts on the device. NumPy arrays are always counts on the host, even under
        ``PYNCCLX_DEVICE=host``, because mpi4py programs pass counts as NumPy arrays.
    displs : list of int, Buffer or None
        None for adjacent blocks whose counts are on the device.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, MPI.Exception, NotSupported
        The errors of `resolve`; MPI.Exception of class ERR_COUNT for a negative count.
    """
    if not isinstance(spec, (list, tuple)) and reader_of(spec) is None:
        raise no_buffer(spec, name)
    array, o_counts, o_displs, key = spec_parts(spec, name, lists=False)
    buffer = whole_buffer(array, key, name, writable=writable, device=device, divide=o_counts is None)
    counts: list[int] | Buffer
    displs: list[int] | Buffer | None
    if o_counts is None:
        counts = divide(buffer.count, size)
    else:
        counts = _integers(o_counts, f"{name} counts", size, device, stride=False)
    if o_displs is None:
        displs = packed(counts) if isinstance(counts, list) else None
    else:
        displs = _integers(o_displs, f"{name} displs", size, device, stride=True)
    if isinstance(counts, list):
        if isinstance(displs, list):
            displs = _from_first(buffer, counts, displs, device)
        host_displs = displs if isinstance(displs, list) else None
        check(counts, host_displs, _room(buffer, array, counts, host_displs, device), name)
    return buffer, counts, displs


def resolve_dynamic(
    spec: Any, name: str, size: int, *, writable: bool, device: Device
) -> tuple[Buffer, Buffer | None, Buffer | None]:
    """Resolve an argument whose counts and displacements, if any, are device arrays.

    Parameters
    ----------
    spec : array, ``[array, counts]``, ``[array, (counts, displs)]`` or ``[array, counts, displs, datatype]``
        counts and displs: device arrays of shape (size,) and int64; with `writable` they are outputs.
    name, size, writable, device
        See `resolve_vector`.

    Returns
    -------
    buffer : Buffer
        The whole array.
    counts, displs : Buffer or None
        None if omitted.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, NotSupported
        The errors of `resolve` with `rows`; also ValueError for an array in Fortran order, whose rows are scattered.
    """
    if not isinstance(spec, (list, tuple)) and reader_of(spec) is None:
        raise no_buffer(spec, name)
    array, o_counts, o_displs, key = spec_parts(spec, name, lists=False)
    buffer = whole_buffer(array, key, name, writable=writable, device=device, divide=True, rows=True)
    check_c_order(buffer.owner, name)
    counts = None if o_counts is None else _device_integers(o_counts, f"{name} counts", size, device, writable)
    displs = None if o_displs is None else _device_integers(o_displs, f"{name} displs", size, device, writable)
    return buffer, counts, displs


def _room(buffer: Buffer, array: Any, counts: list[int], displs: list[int] | None, device: Device) -> int:
    """Return the number of elements that blocks may use; see `pointers.reaches`."""
    if displs is None:
        return buffer.count
    needed = max((displ + count for count, displ in zip(counts, displs, strict=False) if count), default=0)
    nbytes = needed * buffer.datatype.itemsize
    if needed <= buffer.count or not reaches(array, device, buffer.address, nbytes):
        return buffer.count
    buffer.count, buffer.reach = needed, nbytes
    return needed


def _from_first(buffer: Buffer, counts: list[int], displs: list[int], device: Device) -> list[int]:
    """Move the buffer's beginning to the first block if that lies before the array.

    Do this only if the array is part of a longer one, whose memory has room for the block. Return the displacements
    from the beginning of the buffer.
    """
    first = min((displ for count, displ in zip(counts, displs, strict=True) if count), default=0)
    nbytes = -first * buffer.datatype.itemsize
    if first >= 0 or not precedes(buffer.owner, device, buffer.address, nbytes):
        return displs
    buffer.address -= nbytes
    buffer.count -= first
    return [displ - first for displ in displs]


def _integers(value: Any, name: str, size: int, device: Device, *, stride: bool) -> list[int] | Buffer:
    if on_device(value):
        return _device_integers(value, name, size, device)
    return integers(value, name, size, stride=stride)


def _device_integers(value: Any, name: str, size: int, device: Device, writable: bool = False) -> Buffer:
    buffer = resolve(value, name, writable=writable, device=device)
    if buffer.datatype is not TABLE["int64"]:
        raise TypeError(f"{name} is a device array of {buffer.datatype.name}; convert it with .astype('int64')")
    if buffer.count != size:
        raise ValueError(f"{name} has {buffer.count} items, expecting {size}, one for each rank")
    return buffer


def integer(number: Any) -> int:
    """Return a rank or tag as an int; drop the fraction of a float, as mpi4py does."""
    if type(number) is int:
        return number
    if not hasattr(number, "__int__"):
        raise TypeError(f"an integer is required, not {number!r}")
    return int(number)


def divide(count: int, size: int) -> list[int]:
    """Return the lengths of `size` blocks of `count` elements.

    The first blocks get the remainder.
    """
    each, rest = divmod(count, max(size, 1))
    return [each + (rank < rest) for rank in range(size)]


def packed(counts: Sequence[int]) -> list[int]:
    """Return the displacements of adjacent blocks."""
    displs, end = [], 0
    for count in counts:
        displs.append(end)
        end += count
    return displs


def integers(value: Any, name: str, size: int, *, stride: bool) -> list[int]:
    """Return counts or displs as a list.

    One integer is the count of all blocks, or with `stride` their distance.
    """
    try:
        length = len(value)
    except TypeError:
        if value is None:
            raise ValueError(f"{name} is None; give {size} numbers, one for each rank") from None
        each = operator.index(value)
        return [each * rank for rank in range(size)] if stride else [each] * size
    if length != size:
        raise ValueError(f"{name} has {length} items, expecting {size}, one for each rank")
    return list(map(operator.index, value))


def check(counts: Sequence[int], displs: Sequence[int] | None, room: int, name: str) -> None:
    """Raise an error for a block outside the array; `displs` is None on the device."""
    for rank, count in enumerate(counts):
        if count < 0:
            raise MPIError(MPI.ERR_COUNT, f"{name} has count {count} for rank {rank}; it cannot be negative")
        first = displs[rank] if displs is not None else 0
        # An empty block may have any displacement.
        if count and not 0 <= first <= room - count:
            raise ValueError(
                f"{name} has {room} elements, the block of rank {rank} is {count} from element {first}; pass "
                "a larger array, or check counts and displs (in elements)"
            )
