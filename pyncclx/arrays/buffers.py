"""Any array or mpi4py buffer spec -> address, count, datatype: what a collective must know of an argument."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from . import datatypes, vectors
from .datatypes import TABLE, Datatype
from .memory import Device
from .readers import place, read_numpy, read_torch, reader_of
from .specs import is_nothing, no_buffer, on_host, parts, spec_parts, where

__all__ = ["Buffer", "on_device", "on_host", "resolve", "resolve_dynamic", "resolve_vector", "spec_parts", "where"]


@dataclass(slots=True)
class Buffer:
    """Device memory that a caller gave to an operation.

    Attributes
    ----------
    address : int
        Of the first element, displacement included.
    count : int
        Elements of `datatype` (per block, where the operation has one block for each rank).
    datatype : Datatype
    shape : tuple of int
        The array's own shape, whatever part of it is used.
    readonly : bool
    stream : int or None
        The CUDA stream that makes the data; 1 is the legacy default stream, 2 the per-thread one. None: the
        current stream, nothing to wait for.
    owner : object
        Keeps the memory alive.
    """

    address: int
    count: int
    datatype: Datatype
    shape: tuple[int, ...]
    readonly: bool
    stream: int | None
    owner: object

    @property
    def nbytes(self) -> int:
        """Bytes of `count` elements."""
        return self.count * self.datatype.itemsize

    @property
    def of_torch(self) -> bool:
        """Whether PyTorch's current stream made the data: there its user goes on."""
        return self.stream is not None and reader_of(self.owner) is read_torch


def resolve(spec: Any, name: str, *, writable: bool, device: Device, blocks: int = 1) -> Buffer:
    """Find address, count and datatype of a plain buffer argument.

    Parameters
    ----------
    spec : array, ``[array, count]``, ``[array, datatype]``, ``[array, count, datatype]``, \
``[array, (count, displ), datatype]`` or ``[array, count, displ, datatype]``
        Lists and tuples alike; count and displacement in elements; the datatype an MPI datatype or a string.
    name : str
        Operation and argument for messages, such as ``"Allreduce: recvbuf"``.
    writable : bool
        Whether the operation writes to it.
    device : Device
        Where the communicator runs.
    blocks : int, default 1
        Parts of equal length, one a rank: `Buffer.count` is then that of one block.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, MPI.Exception
        As mpi4py does for the same argument; besides, ValueError when the elements do not fit the array, or
        it is on another GPU.
    NotSupported
        Host memory, or a derived datatype.
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
    array, count, displ, key = parts(spec, name, lists=True)
    buffer = _whole(array, key, name, writable, device, divide=count is None)
    return _select(buffer, array, count, displ, name, blocks)


def resolve_vector(
    spec: Any, name: str, size: int, *, writable: bool, device: Device
) -> tuple[Buffer, list[int] | Buffer, list[int] | Buffer | None]:
    """Find the buffer, counts and displacements of an argument that has one block for each of `size` ranks.

    Parameters
    ----------
    spec : array, ``[array, counts]``, ``[array, (counts, displs)]``, ``[array, counts, datatype]``, \
``[array, (counts, displs), datatype]`` or ``[array, counts, displs, datatype]``
        One integer as counts is the count of every block, one integer as displs the distance between blocks.
        Without counts the array is divided, the first blocks taking the remainder; without displs the blocks
        follow one another. Counts and displs may be device arrays of int64 (an extension of mpi4py).
    name, writable, device
        As for `resolve`.
    size : int
        Number of blocks.

    Returns
    -------
    buffer : Buffer
        All of the array: `Buffer.count` is the room that there is.
    counts : list of int, or Buffer
        A `Buffer` if given on the device. NumPy arrays are counts on the host, always: under
        ``PYNCCLX_DEVICE=host`` too, since mpi4py programs give them so.
    displs : list of int, Buffer or None
        None if left out while counts are on the device: packed blocks, which only the device can place.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, MPI.Exception, NotSupported
        As `resolve`; MPI.Exception of class ERR_COUNT for a negative count.
    """
    array, o_counts, o_displs, key = parts(spec, name, lists=False)
    buffer = _whole(array, key, name, writable, device, divide=o_counts is None)
    counts: list[int] | Buffer
    displs: list[int] | Buffer | None
    if on_device(o_counts):
        counts = _device_integers(o_counts, f"{name} counts", size, device)
    elif o_counts is None:
        counts = vectors.divide(buffer.count, size)
    else:
        counts = vectors.integers(o_counts, f"{name} counts", size, stride=False)
    if on_device(o_displs):
        displs = _device_integers(o_displs, f"{name} displs", size, device)
    elif o_displs is None:
        displs = vectors.packed(counts) if isinstance(counts, list) else None
    else:
        displs = vectors.integers(o_displs, f"{name} displs", size, stride=True)
    if isinstance(counts, list):
        vectors.check(counts, displs if isinstance(displs, list) else None, buffer.count, name)
    return buffer, counts, displs


def resolve_dynamic(
    spec: Any, name: str, size: int, *, writable: bool, device: Device
) -> tuple[Buffer, Buffer | None, Buffer | None]:
    """Find the buffer of an argument whose counts and displacements, if any, are device arrays.

    Parameters
    ----------
    spec : array, ``[array, counts]``, ``[array, (counts, displs)]`` or ``[array, counts, displs, datatype]``
        counts and displs: device arrays, shape (size,), int64; with `writable` they are outputs.
    name, size, writable, device
        As for `resolve_vector`.

    Returns
    -------
    buffer : Buffer
        All of the array.
    counts, displs : Buffer or None
        None where left out.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError, NotSupported
        As `resolve`.
    """
    array, o_counts, o_displs, key = parts(spec, name, lists=False)
    buffer = _whole(array, key, name, writable, device, divide=True)
    counts = None if o_counts is None else _device_integers(o_counts, f"{name} counts", size, device, writable)
    displs = None if o_displs is None else _device_integers(o_displs, f"{name} displs", size, device, writable)
    return buffer, counts, displs


def _whole(array: Any, key: Any, name: str, writable: bool, device: Device, divide: bool) -> Buffer:
    """Resolve all of the array in a spec; `divide` if its length must tell the count."""
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
    return Buffer(address, count, datatype, shape, readonly, stream, owner)


def _select(buffer: Buffer, array: Any, o_count: Any, o_displ: Any, name: str, blocks: int) -> Buffer:
    """Narrow a whole buffer to the elements that count and displacement choose."""
    room = buffer.count
    displ = 0 if o_displ is None else operator.index(o_displ)
    if not 0 <= displ <= room:
        raise ValueError(f"{name} has displacement {displ}, but {room} elements; the displacement counts elements")
    if o_count is None:
        count = _block(room - displ, blocks, name)
    else:
        count = operator.index(o_count)
        if count < 0:
            raise ValueError(f"{name} has count {count}; it cannot be negative")
        if count and array is MPI.BOTTOM:
            raise NotSupported(f"{name} is MPI.BOTTOM with absolute addresses; pass the device array itself")
        if displ + count * blocks > room:
            of_blocks = f" in each of {blocks} blocks" if blocks > 1 else ""
            raise ValueError(
                f"{name} has {room} elements of {buffer.datatype.name}, the message {count}{of_blocks} from "
                f"element {displ}; pass a larger array or a smaller count"
            )
    buffer.address += displ * buffer.datatype.itemsize
    buffer.count = count
    return buffer


def _block(count: int, blocks: int, name: str) -> int:
    if count % blocks:
        raise ValueError(f"{name} has {count} elements, not a multiple of {blocks} ranks; all ranks have equal blocks")
    return count // blocks


def _datatype(key: Any, name: str, divide: bool) -> Datatype:
    if key is None:
        raise KeyError(f"{name} has no array and no datatype; name the datatype, as in [None, 0, MPI.FLOAT]")
    if not isinstance(key, (MPI.Datatype, Datatype, str)):
        raise KeyError(f"{name} has datatype {key!r}; give an MPI datatype or a string such as 'f4'")
    try:
        return datatypes.of(key)
    except MPIError:
        if divide:  # mpi4py misses the count before MPI misses the datatype
            raise ValueError(f"{name} has MPI.DATATYPE_NULL, so its count is unknown; name the type") from None
        raise


def on_device(value: Any) -> bool:
    """Whether counts or displs are a device array. NumPy arrays never are, on the host device neither."""
    read = reader_of(value)  # none of None, integers, lists and tuples
    return read is not None and read is not read_numpy and place(value, read) == "device"


def _device_integers(value: Any, name: str, size: int, device: Device, writable: bool = False) -> Buffer:
    buffer = resolve(value, name, writable=writable, device=device)
    if buffer.datatype is not TABLE["int64"]:
        raise TypeError(f"{name} is a device array of {buffer.datatype.name}; convert it with .astype('int64')")
    if buffer.count != size:
        raise ValueError(f"{name} has {buffer.count} items, expecting {size}, one for each rank")
    return buffer


def _read_only(name: str) -> BufferError:
    return BufferError(f"{name} is read-only, and the operation writes to it; pass a writable array")
