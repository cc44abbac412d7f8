"""Hooks of users: a function of theirs is called with events as they happen."""

from __future__ import annotations

from collections.abc import Callable

from . import END, SLOW, Event, hooks, listeners, sent

_DEFAULT_SLOW_S = 1.0


def on_event(hook: Callable[[Event], object], *, slow_s: float = _DEFAULT_SLOW_S) -> Callable[[], None]:
    """Call a function at the start and at the end of each operation, and when one fails, for a program's own log.

    Parameters
    ----------
    hook : callable
        Gets a `pyncclx.Event`. Its `kind` is "start", "end", "slow", "failure" or "mismatch". What it raises is
        reported, and does not reach the program.
    slow_s : float
        Operations of which the call takes so many seconds also cause an event "slow", after their "end".

    Returns
    -------
    callable
        Takes the hook away.

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
