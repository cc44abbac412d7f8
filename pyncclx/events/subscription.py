"""Hooks: functions of the program that are called with events."""

from __future__ import annotations

from collections.abc import Callable

from . import END, SLOW, Event, hooks, listeners, sent

_DEFAULT_SLOW_S = 1.0


def on_event(hook: Callable[[Event], object], *, slow_s: float = _DEFAULT_SLOW_S) -> Callable[[], None]:
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
