"""Split buffer arguments in mpi4py's forms, such as ``[array, count, datatype]``."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .checks import in_host_memory
from .datatypes import Datatype

__all__ = ["is_nothing", "no_buffer", "spec_parts"]

# Array, counts, displs and datatype; None for parts that the spec omits.
_Parts = tuple[Any, Any, Any, Any]


def spec_parts(spec: Any, name: str = "buf", *, lists: bool = True) -> _Parts:
    """Split a buffer argument into array, count, displacement and datatype.

    Omitted parts are None. (count, displ) in the count's place may be a tuple, and with `lists` also a list, as in
    plain arguments.
    """
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"{name} is a list of {len(spec)} items; give [array, count, datatype] or a part of it")
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    array, count = spec[0], spec[1]
    key = spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(count, (MPI.Datatype, Datatype, str)):
        return array, None, None, count
    if isinstance(count, tuple) or (lists and isinstance(count, list)):
        if len(count) != 2:
            raise ValueError(f"{name} has {count!r} where (count, displ) belongs")
        return array, count[0], count[1], key
    return array, count, None, key


def is_nothing(array: Any) -> bool:
    """Return whether an argument has no array; its datatype may still have addresses."""
    return array is None or array is MPI.BOTTOM


def no_buffer(value: Any, name: str) -> Exception:
    """Return the error for an argument that is no device array."""
    try:
        memoryview(value)
    except TypeError:
        return TypeError(f"{name} is {value!r}; expecting a device array or a list such as [array, count, MPI.FLOAT]")
    return in_host_memory(value, name)
