"""Buffer arguments as mpi4py takes them: where the memory is, and what a list says of count and datatype."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..system.pointers import is_device_pointer
from .datatypes import Datatype
from .memory import in_host_memory
from .readers import host_arrays, on_device_always, place, reader_of

__all__ = ["is_nothing", "no_buffer", "on_host", "parts", "spec_parts", "where"]

_Parts = tuple[Any, Any, Any, Any]  # array, counts, displs, datatype; None for what the spec leaves out


def where(spec: Any) -> str | None:
    """Tell where a buffer argument lives.

    Parameters
    ----------
    spec : array or mpi4py buffer spec
        Of a list or tuple the first item counts.

    Returns
    -------
    "device", "host" or None
        None where there is no buffer: None, `MPI.IN_PLACE`, `MPI.BOTTOM` without datatypes of absolute addresses.
        "host" is whatever mpi4py should judge. NumPy arrays are on the device under ``PYNCCLX_DEVICE=host``.
    """
    if type(spec) in on_device_always:
        return "device"
    if isinstance(spec, (list, tuple)):
        if spec and spec[0] is MPI.BOTTOM:
            return _where_absolute(spec)
        spec = spec[0] if spec else None
    read = reader_of(spec)
    if read is not None:
        return place(spec, read)
    return None if is_nothing(spec) or spec is MPI.IN_PLACE else "host"


def _where_absolute(spec: Any) -> str | None:
    """Where the addresses are that a datatype names, or the first of several that names any."""
    keys = spec[-1] if isinstance(spec[-1], (list, tuple)) else spec[-1:]
    for each, displ in zip(keys, _byte_displs(spec, len(keys)), strict=False):
        if isinstance(each, MPI.Datatype) and each != MPI.DATATYPE_NULL and each.Get_size():
            lower, _ = each.Get_true_extent()
            if lower + displ:
                return "device" if host_arrays() or is_device_pointer(lower + displ) else None
    return None


def _byte_displs(spec: Any, blocks: int) -> Any:
    """The displacements of an argument with a datatype for each block; zeros for others."""
    displs = None
    if isinstance(spec[-1], (list, tuple)):
        if len(spec) == 4:
            displs = spec[2]
        elif len(spec) == 3 and isinstance(spec[1], (list, tuple)) and len(spec[1]) == 2:
            displs = spec[1][1]
    return [0] * blocks if displs is None else displs


def on_host(*buffers: Any) -> bool:
    """Whether a call is mpi4py's: none of its buffers is a device array. If some are, `resolve` refuses the others."""
    return "device" not in map(where, buffers)


def spec_parts(spec: Any, name: str = "buf", *, lists: bool = True) -> tuple[Any, Any, Any, Any]:
    """Take a buffer argument apart: array, count, displacement, datatype; None where left out.

    With `lists` a list too, not only a tuple, may be (count, displ) in the count's place, as in a plain argument.
    """
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    return parts(spec, name, lists)


def parts(spec: Any, name: str, lists: bool) -> _Parts:
    """Split a spec; with `lists` a list too, not only a tuple, may be (count, displ) in the count's place."""
    if not isinstance(spec, (list, tuple)):
        if reader_of(spec) is not None:
            return spec, None, None, None
        raise no_buffer(spec, name)
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
    """Whether an argument has no array; there may be addresses."""
    return array is None or array is MPI.BOTTOM


def no_buffer(value: Any, name: str) -> Exception:
    """Say what is wrong with an argument that is no device array."""
    try:
        memoryview(value)
    except TypeError:
        return TypeError(f"{name} is {value!r}; expecting a device array or a list such as [array, count, MPI.FLOAT]")
    return in_host_memory(value, name)
