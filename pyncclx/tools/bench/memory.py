"""Sizes and memory of the benchmark's arrays.

Memory is ordinary, registered, in windows, or pinned.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ...errors import NotSupported
from ...windows.win import Win

SEND, RECV = 0, 1


def parse_nbytes(text: str) -> int:
    """Return the bytes of "8", "64K", "256M" or "1G"."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if not match:
        raise SystemExit(f"{text!r} is no size; give bytes, or a number with K, M or G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def steps(first_nbytes: int, last_nbytes: int, *, factor: int = 2, difference: int = 0) -> Iterator[int]:
    """Yield increasing sizes in bytes, from `first_nbytes` to at most `last_nbytes`.

    Each size is the previous one plus `difference`, or times `factor` if `difference` is 0.

    Examples
    --------
    >>> list(steps(8, 70)), list(steps(8, 70, difference=24))
    ([8, 16, 32, 64], [8, 32, 56])
    """
    nbytes = first_nbytes
    while nbytes <= last_nbytes:
        yield nbytes
        nbytes = nbytes + difference if difference else nbytes * factor


def array_module(comm: Any) -> Any:
    """Return CuPy, or NumPy on the host device."""
    if comm.device == "host":
        return np
    import cupy  # noqa: PLC0415  only where there is a GPU

    return cupy


class Memory(Protocol):
    """Source of one send and one receive buffer at a time."""

    def empty(self, place: int, count: int, dtype: Any) -> Any:
        """Return an array for SEND or RECV, which may share memory with the previous one."""


class Ordinary:
    """Arrays allocated by the array library."""

    def __init__(self, comm: Any) -> None:
        self._xp = array_module(comm)

    def empty(self, place: int, count: int, dtype: Any) -> Any:
        return self._xp.empty(count, dtype)


class _Fixed:
    """Arrays in two fixed arrays of bytes."""

    _arrays: list[Any]

    def empty(self, place: int, count: int, dtype: Any) -> Any:
        return self._arrays[place][: count * np.dtype(dtype).itemsize].view(dtype)


class Windows(_Fixed):
    """Two arrays of `comm.Alloc` for all sizes up to `nbytes` (collective).

    They last as long as the communicator.
    """

    def __init__(self, comm: Any, nbytes: int) -> None:
        self._arrays = [comm.Alloc(nbytes, np.uint8) for _ in (SEND, RECV)]
        self._comm = comm

    @functools.cached_property
    def win(self) -> Win:
        """Window for one-sided operations on the receive buffer; collective at first use."""
        return Win.Create(self._arrays[RECV], 1, comm=self._comm)


class Registered(_Fixed):
    """Two registered ordinary arrays for all sizes up to `nbytes` (collective)."""

    def __init__(self, comm: Any, nbytes: int) -> None:
        self._arrays = [array_module(comm).empty(nbytes, np.uint8) for _ in (SEND, RECV)]
        self._registrations = [comm.Register(array) for array in self._arrays]


def memory_of(comm: Any, buffers: str, nbytes: int) -> Memory:
    """Return memory of the kind that the command line names (collective).

    The kinds are "ordinary", "windows" and "registered".
    """
    if buffers == "windows":
        return Windows(comm, nbytes)
    if buffers == "ordinary":
        return Ordinary(comm)
    try:
        return Registered(comm, nbytes)
    except NotSupported as refusal:
        # All ranks raise the exception.
        raise SystemExit(f"bench: {refusal}") from None


class Pinned(Ordinary):
    """Host memory that GPUs copy at full speed; ordinary memory on the host device."""

    def empty(self, place: int, count: int, dtype: Any) -> Any:
        if self._xp is np:
            return super().empty(place, count, dtype)
        return np.frombuffer(self._xp.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize), dtype, count)
