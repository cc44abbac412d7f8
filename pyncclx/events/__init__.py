"""The one event sink: each room emits an event for each operation that it carries out, and listeners receive it.

While `listeners` is empty, an operation only looks at it once::

    began = events.begin("Allreduce", comm) if events.listeners else None
    ...
    if began is not None:
        events.emit("Allreduce", events.NATIVE, nbytes, began)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

NATIVE = "native"  # kernels move device arrays
STAGED = "staged"  # device arrays go through host memory and MPI
HOST = "host"  # mpi4py moves host arrays

START, END, SLOW, FAILURE, MISMATCH = "start", "end", "slow", "failure", "mismatch"  # kinds of events

now = time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation, emitted when its method returns; a persistent request emits one at each start.

    Attributes
    ----------
    kind : {START, END, SLOW, FAILURE, MISMATCH}
        Listeners get those of ends alone, hooks (`pyncclx.on_event`) all. Of a start, only operation and comm are
        known; of a failure, operation, text and error.
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
    kind: str = END
    text: str = ""
    error: BaseException | None = None

    def as_kind(self, kind: str) -> Event:
        """Return the same event with another kind."""
        return replace(self, kind=kind)


listeners: list[Callable[[Event], None]] = []
hooks: list[Callable[[Event], object]] = []


def begin(operation: str, comm: Any = None) -> float:
    """Give hooks the event of an operation that starts now; return the time, for `emit`."""
    began = now()
    start(operation, began, comm)
    return began


def start(operation: str, began: float, comm: Any = None) -> None:
    """Give hooks the event of an operation that has started."""
    if hooks:
        event = Event(operation=operation, how="", nbytes=0, began=began, ended=began, comm=comm, kind=START)
        for hook in hooks:
            hook(event)


def failed(kind: str, error: BaseException) -> None:
    """Give hooks the event of a failure or a mismatch that is about to be raised."""
    if hooks:
        at, text = now(), f"{type(error).__name__}: {error}"
        operation = str(getattr(error, "operation", ""))
        event = Event(operation=operation, how="", nbytes=0, began=at, ended=at, kind=kind, text=text, error=error)
        for hook in hooks:
            hook(event)


def sent(hook: Callable[[Event], object], event: Event) -> None:
    """Call a hook of the program's; what it raises is logged: no rank may leave an operation alone."""
    try:
        hook(event)
    except Exception:
        logging.getLogger("pyncclx").exception("a hook of pyncclx.on_event has raised")


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
