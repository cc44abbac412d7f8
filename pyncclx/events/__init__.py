"""The one event sink: each room emits an event for each operation that it carries out, and listeners receive it.

While `listeners` is empty, an operation only looks at it once::

    began = events.now() if events.listeners else None
    ...
    if began is not None:
        events.emit("Allreduce", events.NATIVE, nbytes, began)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

NATIVE = "native"  # kernels move device arrays
STAGED = "staged"  # device arrays go through host memory and MPI
HOST = "host"  # mpi4py moves host arrays

now = time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation, emitted when its method returns; a persistent request emits one at each start.

    Attributes
    ----------
    operation : str
        Name of the method; for a start, of the method that made the request.
    how : {NATIVE, STAGED, HOST}
    nbytes : int
        Length of the longest array among the arguments.
    began, ended : float
        Times of `now`, in seconds: from call to return.
    together : int
        Number of operations that the same call has started, each of which emits an event with the same times.
    comm : MPI.Comm or None
        The communicator, where the emitting room has it at hand.
    peer : int or None
        The other rank of a message or a one-sided operation.
    """

    operation: str
    how: str
    nbytes: int
    began: float
    ended: float
    together: int = 1
    comm: Any = None
    peer: int | None = None


listeners: list[Callable[[Event], None]] = []


def emit(
    operation: str,
    how: str,
    nbytes: int,
    began: float,
    *,
    together: int = 1,
    comm: Any = None,
    peer: int | None = None,
) -> None:
    """Give all listeners the event of an operation that ends now."""
    event = Event(
        operation=operation,
        how=how,
        nbytes=nbytes,
        began=began,
        ended=now(),
        together=together,
        comm=comm,
        peer=peer,
    )
    for listener in listeners:
        listener(event)


def longest_nbytes(arguments: Iterable[Any]) -> int:
    """Length of the longest array among a call's arguments: arrays, buffer specifications and others."""
    return max(map(_nbytes, arguments), default=0)


def _nbytes(argument: Any) -> int:
    array = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
    try:
        return int(array.nbytes if hasattr(array, "nbytes") else memoryview(array).nbytes)
    except TypeError:  # no array: a rank, an operator, MPI.IN_PLACE
        return 0
