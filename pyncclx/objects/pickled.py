"""Split objects into device arrays and a pickle of the rest, and restore them."""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy import ndarray, object_, sctypeDict, void

from mpi_bootstrap.own_errors import own_error

from .. import events
from ..arrays.places import host_arrays
from .libraries import Form, Library, array_classes
from .opening import opener
from .packed_arrays import PackedArrays

_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray, *sctypeDict.values())) - {
    object_,
    void,
}
_CONTAINERS = frozenset((list, tuple, set, frozenset))
# Most items to check one by one; in a larger object the pickler finds arrays.
_MOST_ITEMS = 48
_PROTOCOL = 5
_DEFAULTS = {id(pickle.dumps), id(pickle.loads)}


class Pickled:
    """An object, split into device arrays and a pickle of the rest.

    Attributes
    ----------
    stream : bytes
        Pickle of all but the arrays' data.
    buffers : list
        Out-of-band buffers of the pickle, in order: `PickleBuffer` of host memory, None for each device array.
    arrays : list of array
        The device arrays.
    """

    def __init__(self, stream: bytes, buffers: list[Any], arrays: list[Any]) -> None:
        self.stream, self.buffers, self.arrays = stream, buffers, arrays


class Packed:
    """An object without device arrays that is unpickled after its message has arrived.

    The reason is that unpickling may raise.
    """

    def __init__(self, contents: Pickled) -> None:
        self._fields = contents.stream, contents.buffers

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open_packed, self._fields


@opener()
def open_packed(stream: bytes, buffers: list[Any]) -> Any:
    """Return the object of a `Packed`; pickle calls this."""
    return put_together(stream, buffers, ())


def is_plain(obj: Any) -> bool:
    """Return whether an object certainly holds no device array.

    It is a scalar, a host array, or a container with few of them. The test takes less than 2 µs. Other objects must be
    pickled to find out.
    """
    if type(obj) in _SCALARS:
        return True
    left, items = _MOST_ITEMS, [obj]
    while items:
        item = items.pop()
        kind = type(item)
        if kind is dict:
            if not _SCALARS.issuperset(map(type, item)):
                return False
            values = item.values()
        elif kind in _CONTAINERS:
            values = item
        elif kind is ndarray and not host_arrays() and not item.dtype.hasobject:
            continue
        else:
            return False
        left -= len(values)
        if left < 0:
            return False
        if not _SCALARS.issuperset(map(type, values)):
            items += [value for value in values if type(value) not in _SCALARS]
    return True


def take_apart(obj: Any) -> Pickled | None:
    """Split an object; return None if it has no device arrays.

    Also return None if the program has replaced `MPI.pickle`.
    """
    contents = pickled(obj)
    return contents if contents is not None and contents.arrays else None


def pickled(obj: Any) -> Pickled | None:
    """Pickle an object; return None if it is plain or `MPI.pickle` was replaced.

    Raises
    ------
    Exception
        The exception of pickle for an object that cannot be pickled.
    """
    if is_plain(obj):
        return None
    classes = array_classes()
    if not classes:
        return None
    taker = _Taker(classes)
    try:
        stream = taker.dump(obj)
    except Exception as error:
        if pickles_by_default() or own_error(error) is None:
            raise
        return None
    return Pickled(stream, taker.buffers, taker.arrays) if pickles_by_default() else None


def put_together(stream: bytes, buffers: list[Any], arrays: Sequence[Any]) -> Any:
    """Unpickle an object, with `arrays` in place of its original device arrays."""
    others = iter(arrays)
    return pickle.loads(stream, buffers=[next(others) if each is None else each for each in buffers])


class _Taker:
    """Pickler that takes the device arrays out of an object.

    The C pickler looks up the class of each object in a table, and calls a function for device arrays only. So other
    objects take no extra time. Among the out-of-band buffers, a marker represents each array.
    """

    def __init__(self, classes: dict[type, Library]) -> None:
        self._classes = classes
        self._marker: pickle.PickleBuffer | None = None
        self.buffers: list[Any] = []
        self.arrays: list[Any] = []

    def dump(self, obj: Any) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, _PROTOCOL, buffer_callback=self._keep)
        pickler.dispatch_table = {**copyreg.dispatch_table, **dict.fromkeys(self._classes, self._reduce)}
        pickler.dump(obj)
        return file.getvalue()

    def _reduce(self, array: Any) -> Any:
        if not self._classes[type(array)].moves(array):
            return array.__reduce_ex__(_PROTOCOL)
        self._marker = pickle.PickleBuffer(bytearray(1))
        self.arrays.append(array)
        return _itself, (self._marker,)

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(None if buffer is self._marker else buffer)


def _itself(array: Any) -> Any:
    """Return an array; the pickle calls this for each array."""
    return array


def pickles_by_default() -> bool:
    """Return whether mpi4py pickles by the standard library.

    A program may have replaced `MPI.pickle`.
    """
    protocol = MPI.pickle.PROTOCOL
    return protocol is not None and protocol >= _PROTOCOL and _DEFAULTS.issubset(map(id, gc.get_referents(MPI.pickle)))


@dataclass(slots=True)
class Short:
    """An object with short arrays, opened by any rank that unpickles it."""

    stream: bytes
    buffers: list[Any]
    forms: tuple[Form, ...]
    data: bytes

    @classmethod
    def of(cls, comm: Any, contents: Pickled, packed: PackedArrays, operation: str) -> Short:
        """Create a `Short` of an object, with a host copy of its arrays' data."""
        began = events.now() if events.listeners else None
        data = packed.download().tobytes()
        if began is not None:
            events.emit(operation, events.STAGED, len(data), began, comm=comm)
        return cls(contents.stream, contents.buffers, packed.forms, data)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open_short, (self.stream, self.buffers, self.forms, self.data)


@opener()
def open_short(stream: bytes, buffers: list[Any], forms: tuple[Form, ...], data: bytes) -> Any:
    """Return the object of a `Short`, with new arrays; pickle calls this."""
    arrays = PackedArrays.like(forms).upload(np.frombuffer(data, np.uint8))
    return put_together(stream, buffers, arrays)
