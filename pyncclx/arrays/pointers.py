"""Objects of the host over memory that may be the device's: NumPy arrays, memoryviews, ctypes arrays, `MPI.buffer`.

Programs make them of device pointers for an MPI that takes such, as by ``MPI.buffer.fromaddress(pointer, nbytes)``.
Only the driver can find out where a pointer leads, and it is asked once for each object: the memory of an object stays
what it is for as long as the object may be used. (The range of an address is not remembered: it may be freed and used
again.)
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

__all__ = ["address_of", "gpu_at", "has_memory", "is_of_host", "is_over_device", "precedes", "reaches"]

_HOST_OWNERS = (bytes, bytearray, stdlib_array.array, np.generic)  # their memory is Python's own
_known: dict[int, tuple[weakref.ref[Any], bool]] = held({})  # by the identity of an object: whether it is over a device


def has_memory(thing: Any) -> bool:
    """Whether an object has Python's buffer interface, and may be over other memory than Python's own."""
    if isinstance(thing, _HOST_OWNERS):
        return False
    try:
        memoryview(thing)
    except TypeError:
        return False
    except (BufferError, ValueError):  # it has one, but not now, or not as a memoryview
        return True
    return True


def is_of_host(thing: Any) -> bool:
    """Whether an object is over memory of an object of Python's, as `bytearray` is; NumPy's own arrays are none."""
    owner = _owner_of(thing)
    return isinstance(owner, _HOST_OWNERS) or bool(getattr(owner, "_b_needsfree_", False))  # ctypes' own memory


def is_over_device(thing: Any) -> bool:
    """Whether an object's memory is on a GPU, where the host cannot read it."""
    if type(thing) is MPI.buffer and thing.obj is None:  # there are no weak references of it
        return gpu_at(thing.address) is not None
    while type(thing) is np.ndarray and isinstance(thing.base, np.ndarray):
        thing = thing.base  # whose memory it is a part of
    known = _known.get(id(thing))
    if known is not None and known[0]() is thing:
        return known[1]
    return _look(thing)


def _look(thing: Any) -> bool:
    owner = _owner_of(thing)
    if isinstance(owner, _HOST_OWNERS) or (isinstance(owner, np.ndarray) and owner.flags.owndata):
        return False
    found = gpu_at(address_of(thing)) is not None
    with contextlib.suppress(TypeError):  # there are no weak references of some classes: the next call looks again
        _known[id(thing)] = weakref.ref(thing, functools.partial(_forget, id(thing))), found
    return found


def _forget(identity: int, _: object) -> None:
    _known.pop(identity, None)


def _owner_of(thing: Any) -> Any:
    """The object whose memory it is, as far as it can be found."""
    while True:
        below: Any = None
        if isinstance(thing, np.ndarray):
            below = thing.base
        elif isinstance(thing, (memoryview, MPI.buffer)):
            below = thing.obj
        if below is None or below is thing:
            return thing
        thing = below


def gpu_at(address: int) -> int | None:
    """The number of the GPU whose memory is at an address; None for memory that the host can use."""
    return gpu_of_memory(address)


def reaches(thing: Any, device: Device, address: int, nbytes: int) -> bool:
    """Whether bytes beyond an object's own length may be used: the length of an `MPI.buffer` by address is a guess."""
    return type(thing) is MPI.buffer and device.room(address, nbytes) == nbytes


def precedes(thing: Any, device: Device, address: int, nbytes: int) -> bool:
    """Whether so many bytes before an object's own belong to the memory of which the object is a part.

    Datatypes with negative strides reach there. Of arrays whose memory only the driver could find, it is asked.
    """
    begin = address - nbytes
    known = _whole_of(thing) if has_memory(thing) else None
    return device.room(begin, nbytes) == nbytes if known is None else known <= begin


def _whole_of(thing: Any) -> int | None:
    """The address of the memory of which an object is a part; None if Python does not have it."""
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
        thing = thing.base
    if type(thing) is MPI.buffer and thing.obj is None:
        return None
    for each in (_owner_of(thing), thing):
        with contextlib.suppress(TypeError, ValueError, BufferError):  # it has no buffer interface, as windows' memory
            return address_of(each)
    return None


def address_of(thing: Any) -> int:
    """The address of an object's memory."""
    if isinstance(thing, np.ndarray):
        return int(thing.__array_interface__["data"][0])
    if isinstance(thing, MPI.buffer):
        return int(thing.address)
    return address_of(np.asarray(memoryview(thing)))
