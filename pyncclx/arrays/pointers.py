"""Python objects with a buffer whose memory may be on a GPU.

They are NumPy arrays, memoryviews, ctypes arrays and `MPI.buffer`. For CUDA-aware MPI, programs make them from device
pointers, for example by ``MPI.buffer.fromaddress(pointer, nbytes)``. Only the driver can say which device a pointer
belongs to. It is queried once for each object, because an object's memory does not change. Address ranges are not
cached, because a range may be freed and reused.
"""

from __future__ import annotations

import array as stdlib_array
import contextlib
import functools
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI

from ..system.driver import gpu_of_memory
from ..system.process import held
from .checks import Device

# Python owns the memory of these objects.
_HOST_OWNERS = (bytes, bytearray, stdlib_array.array, np.generic)
# Cached results of `is_over_device`, by the identity of an object.
_known: dict[int, tuple[weakref.ref[Any], bool]] = held({})


def has_memory(thing: Any) -> bool:
    """Return whether an object has a buffer in memory that Python may not own."""
    if isinstance(thing, _HOST_OWNERS):
        return False
    try:
        memoryview(thing)
    except TypeError:
        return False
    except (BufferError, ValueError):
        # The object's class has buffers, but this object exports none now, or none that a memoryview accepts.
        return True
    return True


def is_of_host(thing: Any) -> bool:
    """Return whether a Python object, such as a bytearray, owns an object's memory.

    NumPy arrays do not count as such owners.
    """
    owner = _owner_of(thing)
    # ctypes objects that own their memory have `_b_needsfree_` set.
    return isinstance(owner, _HOST_OWNERS) or bool(getattr(owner, "_b_needsfree_", False))


def is_over_device(thing: Any) -> bool:
    """Return whether an object's memory is on a GPU, where the host cannot read it."""
    # An `MPI.buffer` has no weak references, so the result cannot be cached.
    if type(thing) is MPI.buffer and thing.obj is None:
        return gpu_of_memory(thing.address) is not None
    while type(thing) is np.ndarray and isinstance(thing.base, np.ndarray):
        # The view is a part of the memory of its base.
        thing = thing.base
    # A NumPy array of a PyTorch tensor, which programs make often: the tensor's attribute costs less than the driver.
    if type(thing) is np.ndarray and getattr(thing.base, "is_cuda", True) is False:
        return False
    known = _known.get(id(thing))
    if known is not None and known[0]() is thing:
        return known[1]
    return _look(thing)


def gpu_of(thing: Any) -> int | None:
    """Return the number of the GPU that an object's memory is on; None for the host."""
    return gpu_of_memory(address_of(thing))


def _look(thing: Any) -> bool:
    owner = _owner_of(thing)
    if isinstance(owner, _HOST_OWNERS) or (isinstance(owner, np.ndarray) and owner.flags.owndata):
        return False
    found = gpu_of_memory(address_of(thing)) is not None
    # Some classes have no weak references; for them each call queries again.
    with contextlib.suppress(TypeError):
        _known[id(thing)] = weakref.ref(thing, functools.partial(_forget, id(thing))), found
    return found


def _forget(identity: int, _: object) -> None:
    _known.pop(identity, None)


def _owner_of(thing: Any) -> Any:
    """Return the object that owns the memory, or the last base that can be found."""
    while True:
        below: Any = None
        if isinstance(thing, np.ndarray):
            below = thing.base
        elif isinstance(thing, (memoryview, MPI.buffer)):
            below = thing.obj
        elif hasattr(thing, "__array_interface__") and hasattr(thing, "base"):  # NumPy's as_strided
            below = thing.base
        elif hasattr(thing, "_b_base_"):  # ctypes
            below = thing._b_base_ or _buffer_behind(thing)
        if below is None or below is thing:
            return thing
        thing = below


def _buffer_behind(thing: Any) -> memoryview | None:
    """Return the buffer from which `from_buffer` made an object of ctypes, if any."""
    held = thing._objects if isinstance(thing._objects, dict) else {}
    return next((each for each in held.values() if isinstance(each, memoryview)), None)


def reaches(thing: Any, device: Device, address: int, nbytes: int) -> bool:
    """Return whether a call may use bytes beyond an object's own length.

    A call may use the rest of the memory that the object is part of; `nbytes` counts from `address`. The program may
    have guessed the length of an `MPI.buffer` that it made from an address, so the driver is queried.
    """
    known = memory_of(thing)
    if known is None:
        return type(thing) is MPI.buffer and device.room(address, nbytes) == nbytes
    return address + nbytes <= known[1]


def precedes(thing: Any, device: Device, address: int, nbytes: int) -> bool:
    """Return whether the `nbytes` bytes before an object are in the same memory.

    Datatypes with negative strides use these bytes. The driver is queried for memory that Python does not own.
    """
    begin = address - nbytes
    known = memory_of(thing)
    return device.room(begin, nbytes) == nbytes if known is None else known[0] <= begin


def margins_of(thing: Any, address: int) -> tuple[int, int] | None:
    """Return how many bytes before and behind an array are in the same memory.

    None if the array is not part of a longer one, or if the bounds of the memory are unknown.
    """
    if type(thing) is not MPI.buffer and thing.base is None:
        return None
    known = memory_of(thing)
    return None if known is None else (address - known[0], known[1] - address - thing.nbytes)


def memory_of(thing: Any) -> tuple[int, int] | None:
    """Return begin and end of the memory that an object is part of.

    None if they are unknown.
    """
    owner = _owner_of(thing)
    if hasattr(owner, "untyped_storage"):  # also behind a NumPy array of a tensor's memory
        storage = owner.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
        thing = thing.base
    if type(thing) is MPI.buffer and thing.obj is None:
        return None
    if not isinstance(thing, np.ndarray) and not has_memory(thing):
        # CuPy's views have a base. For other arrays, the memory that they are part of is unknown.
        base = getattr(thing, "base", None)
        pointer = getattr(getattr(base, "data", None), "ptr", None)
        return None if base is None or pointer is None else (pointer, pointer + base.nbytes)
    for each in (owner, thing):
        # Memory of windows, for example, has no buffer interface.
        with contextlib.suppress(TypeError, ValueError, BufferError):
            return _bounds_of(each)
    return None


def _bounds_of(thing: Any) -> tuple[int, int]:
    """Return begin and end of an object's own memory."""
    if isinstance(thing, np.ndarray):
        if not thing.flags.forc:
            # `nbytes` does not show where an array with gaps ends, so only its address is returned.
            return address_of(thing), address_of(thing)
        # Get_address is faster, but it refuses datetimes.
        begin = address_of(thing) if thing.dtype.kind in "mM" else MPI.Get_address(thing)
        return begin, begin + thing.nbytes
    nbytes, begin = memoryview(thing).nbytes, MPI.Get_address(thing)
    return begin, begin + nbytes


def address_of(thing: Any) -> int:
    """Return the address of an object's memory."""
    if isinstance(thing, np.ndarray):
        return int(thing.__array_interface__["data"][0])
    if isinstance(thing, MPI.buffer):
        return int(thing.address)
    return address_of(np.asarray(memoryview(thing)))
