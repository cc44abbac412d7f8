"""Readers: address, length and element type of arrays of any library."""

from __future__ import annotations

import array as stdlib_array
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from ..system.driver import gpu_of_memory
from . import pointers
from .checks import Device, Memory, check_ordinal, in_host_memory, is_contiguous, last_word, not_contiguous
from .datatypes import TABLE
from .protocols import has_protocol, protocol_in_c_order, read_protocol

Reader = Callable[[Any, str, Device], Memory]
# Classes whose arrays are always on the device. A class is added when its first array is read.
device_classes: set[type] = set()


def reader_of(array: Any) -> Reader | None:
    """Return the reader for an array; None if the array's class is not supported."""
    kind = type(array)
    try:
        return _readers[kind]
    except KeyError:
        pass
    found = reader_of_class(kind)
    if found is not None:
        _readers[kind] = found
        if found is read_cupy:
            device_classes.add(kind)
        return found
    # An attribute of the object alone is not cached: other objects of its class may lack it.
    if has_protocol(array):
        return read_protocol
    if pointers.has_memory(array):
        _readers[kind] = read_memory
        return read_memory
    return None


def read_numpy(array: np.ndarray[Any, Any], name: str, device: Device) -> Memory:
    """Read a NumPy array; on a GPU its memory must be device memory."""
    flags, nbytes = array.flags, array.nbytes
    if not flags.forc:
        if device.name != "host" and not pointers.is_over_device(array):
            raise in_host_memory(array, name)
        raise not_contiguous(name, array.shape, array.strides)
    # Get_address takes 0.3 µs; array.ctypes.data takes 2.7 µs (CPython 3.11, 2026-11-24).
    address = MPI.Get_address(array)
    if nbytes and not device.is_device_pointer(address):
        raise in_host_memory(array, name)
    if device.name == "gpu":
        _check_gpu(name, address, device)
    return address, nbytes, array.dtype, array.shape, not flags.writeable, None, array


def read_memory(memory: Any, name: str, device: Device) -> Memory:
    """Read an object that has only a buffer interface.

    It is an `MPI.buffer`, a memoryview, or a ctypes array.
    """
    if type(memory) is not MPI.buffer:
        address, nbytes, key, shape, readonly, *_ = read_numpy(np.asarray(memoryview(memory)), name, device)
        return address, nbytes, key, shape, readonly, None, memory
    address, nbytes = memory.address, memory.nbytes
    if nbytes and not device.is_device_pointer(address):
        raise in_host_memory(memory, name)
    if device.name == "gpu":
        _check_gpu(name, address, device)
    return address, nbytes, TABLE["uint8"], (nbytes,), memory.readonly, None, memory


def _check_gpu(name: str, address: int, device: Device) -> None:
    """Raise an error for memory of another GPU."""
    ordinal = gpu_of_memory(address)
    if ordinal is not None:
        check_ordinal(name, ordinal, device)


def read_cupy(array: Any, name: str, device: Device) -> Memory:
    """Read a CuPy array. Its producer is the current stream, so the stream is None."""
    data = array.data
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise not_contiguous(name, array.shape, array.strides)
    nbytes = array.nbytes
    if nbytes and (data.device_id != device.ordinal or device.name != "gpu"):
        check_ordinal(name, data.device_id, device)
    return data.ptr, nbytes, array.dtype, array.shape, False, None, array


def read_torch(array: Any, name: str, device: Device) -> Memory:
    """Read a PyTorch tensor by `data_ptr`: its array interface has no bfloat16."""
    if array.requires_grad:
        raise BufferError(f"{name} is a tensor that requires grad; pass {last_word(name)}.detach()")
    if array.is_conj() or array.is_neg():
        raise BufferError(f"{name} is lazily conjugated or negated; pass .resolve_conj().resolve_neg()")
    shape = tuple(array.shape)
    if not array.is_contiguous() and not is_contiguous(shape, array.stride(), 1):
        raise not_contiguous(name, shape, array.stride())
    stream = None
    if array.is_cuda:
        check_ordinal(name, array.device.index, device)
        # Streams 0 and 1 are the same legacy default stream, but only 1 works everywhere.
        stream = torch_stream(array.device.index) or 1
    elif device.name != "host":
        raise in_host_memory(array, name)
    nbytes = array.element_size() * array.numel()
    return array.data_ptr(), nbytes, array.dtype, shape, False, stream, array


def torch_stream(ordinal: int) -> int:
    """Return PyTorch's current stream on a GPU, by the call that torch.compile uses.

    `torch.cuda.current_stream` takes 4 µs (2026-11-22, device not noted).
    """
    torch = sys.modules["torch"]
    return int(torch._C._cuda_getCurrentRawStream(ordinal))


def torch_streams(ordinal: int) -> list[int]:
    """Return PyTorch's current stream on a GPU in a list.

    The list is empty if the program does not use PyTorch on GPUs.
    """
    torch = sys.modules.get("torch")
    return [torch_stream(ordinal) or 1] if torch is not None and torch.cuda.is_initialized() else []


def read_buffer(buffer: Any, name: str, device: Device) -> Memory:
    """Read a `Buffer`, an argument that is already resolved."""
    read_only = buffer.readonly, buffer.stream, buffer.owner
    return buffer.address, buffer.nbytes, buffer.datatype, buffer.shape, *read_only


def address_reader_of(array: Any) -> Callable[[], int] | None:
    """Return a function that reads an array's address; None if that never changes."""
    read = reader_of(array)
    if read is read_torch:
        return cast(Callable[[], int], array.data_ptr)
    return functools.partial(MPI.Get_address, array) if read is read_numpy else None


def places_of(arrays: Iterable[Any]) -> list[tuple[Callable[[], int], int]]:
    """Return address reader and address of each array whose address may change."""
    return [(read, read()) for array in arrays if (read := address_reader_of(array)) is not None]


_BY_CLASS: dict[tuple[str, str], Reader] = {
    ("pyncclx", "Buffer"): read_buffer,
    ("numpy", "ndarray"): read_numpy,
    ("cupy", "ndarray"): read_cupy,
    ("torch", "Tensor"): read_torch,
}
_NO_ARRAYS = (
    *(type(None), list, tuple, int, float, str, bytes, bytearray, stdlib_array.array),
    *(type(MPI.IN_PLACE), type(MPI.BOTTOM)),
)
_readers: dict[type, Reader | None] = {**dict.fromkeys(_NO_ARRAYS), memoryview: read_memory, MPI.buffer: read_memory}


def reader_of_class(kind: type) -> Reader | None:
    """Return the reader for arrays of a class; None if the class is not supported."""
    for base in kind.__mro__:
        known = _BY_CLASS.get((base.__module__.partition(".")[0], base.__name__))
        if known is not None:
            return known
    return read_protocol if has_protocol(kind) else None


def in_c_order(owner: Any) -> bool:
    """Return whether the elements of a CuPy, NumPy or other array are in C order.

    Buffers need this check only where an array's rows matter, because readers also accept Fortran order.
    """
    if reader_of(owner) is read_torch:
        return bool(owner.is_contiguous())
    try:
        return bool(owner.flags["C_CONTIGUOUS"])
    except (AttributeError, TypeError, KeyError):
        return owner.c_contiguous if isinstance(owner, memoryview) else protocol_in_c_order(owner)


def check_c_order(owner: Any, name: str) -> None:
    """Raise ValueError for an array whose rows are not contiguous."""
    if not in_c_order(owner):
        raise ValueError(f"{name} is in Fortran order, so its rows are scattered; pass an array in C order")
