"""Emit events of operations to listeners.

While `listeners` is empty, events cost an operation one test::

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


@dataclass(frozen=True, slots=True)
class Event:
    """An event of an operation. Most are of kind END, emitted when its method returns.

    A persistent request emits its events at each start.

    Attributes
    ----------
    kind : {START, END, SLOW, FAILURE, MISMATCH}
        Functions in `listeners` get only END; those passed to `pyncclx.on_event` get all kinds. A START has only
        operation, comm and times; a FAILURE or MISMATCH only operation, text, error and times.
    operation : str
        Name of the method; for the start of a persistent request, of the method that made it.
    how : {NATIVE, STAGED, HOST}
    nbytes : int
        Bytes of the longest array among the arguments.
    began, ended : float
        Times of call and return by `now`, in seconds.
    together : int
        Number of operations that the same call started. Each emits an event with the same times.
    comm : MPI.Comm or None
        The communicator, if the emitting package has it.
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
    """Emit an operation's START event to hooks; return its time, to pass to `emit`."""
    began = now()
    start(operation, began, comm)
    return began


def start(operation: str, began: float, comm: Any = None) -> None:
    """Emit to hooks the START of an operation that began at a given time."""
    if hooks:
        event = Event(operation, "", 0, began, began, comm=comm, kind=START)
        for hook in tuple(hooks):  # a hook may remove itself
            hook(event)


def failed(kind: str, error: BaseException) -> None:
    """Emit a FAILURE or MISMATCH to hooks, just before its error is raised."""
    if hooks:
        at, operation = now(), str(getattr(error, "operation", ""))
        event = Event(operation, "", 0, at, at, kind=kind, text=f"{type(error).__name__}: {error}", error=error)
        for hook in tuple(hooks):  # a hook may remove itself
            hook(event)


def emit(
    operation: str, how: str, nbytes: int, began: float, *, together: int = 1, comm: Any = None, peer: int | None = None
) -> None:
    """Emit the END of an operation to all listeners."""
    event = Event(operation, how, nbytes, began, now(), together, comm, peer)
    for listener in tuple(listeners):
        listener(event)


def on_event(hook: Callable[[Event], object], *, slow_s: float = 1.0) -> Callable[[], None]:
    """Call a function at each operation's start and end, and when one fails.

    Parameters
    ----------
    hook : callable
        Receives a `pyncclx.Event`, whose `kind` is "start", "end", "slow", "failure" or "mismatch". Exceptions of the
        hook are logged, not raised.
    slow_s : float
        Calls that take at least so many seconds also emit an event "slow", after their "end".

    Returns
    -------
    callable
        Removes the hook.

    Examples
    --------
    >>> seen = []
    >>> remove = pyncclx.on_event(seen.append)
    >>> x = pyncclx.Communicator(MPI.COMM_SELF).Alloc(4)
    >>> pyncclx.Communicator(MPI.COMM_SELF).Allreduce(MPI.IN_PLACE, x)
    >>> remove()
    >>> [(event.kind, event.operation, event.nbytes) for event in seen]
    [('start', 'Allreduce', 0), ('end', 'Allreduce', 16)]
    """
    if not callable(hook):
        raise TypeError(f"on_event: hook is {hook!r}; expecting a function that takes an event")

    def end(event: Event) -> None:
        sent(hook, event)
        if event.ended - event.began >= slow_s:
            sent(hook, event.as_kind(SLOW))

    def begin_or_fail(event: Event) -> None:
        if event.kind != END:
            sent(hook, event)

    def remove() -> None:
        if begin_or_fail in hooks:
            hooks.remove(begin_or_fail)
            listeners.remove(end)

    hooks.append(begin_or_fail)
    listeners.append(end)
    return remove


def sent(hook: Callable[[Event], object], event: Event) -> None:
    """Call a hook of the program, and log its exceptions.

    An exception here would make one rank alone leave an operation.
    """
    try:
        hook(event)
    except Exception:
        logging.getLogger("pyncclx").exception("a hook of pyncclx.on_event has raised")


def longest_nbytes(arguments: Iterable[Any]) -> int:
    """Return the bytes of the longest array among a call's arguments."""
    return max(map(_nbytes, arguments), default=0)


def _nbytes(argument: Any) -> int:
    array = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
    try:
        return int(array.nbytes if hasattr(array, "nbytes") else memoryview(array).nbytes)
    except TypeError:  # the argument is no array: a rank, an operator, MPI.IN_PLACE
        return 0
