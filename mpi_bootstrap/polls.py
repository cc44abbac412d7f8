"""Polls of MPI by threads, and blocks in which other threads may not poll.

Open MPI (5.0.11) can lose the first message of a communicator that a rank is making from a group, if another thread of
that rank makes progress at the moment when the message arrives. Then all ranks wait in their calls forever, even in
programs that use mpi4py alone. Open MPI also crashes (segmentation fault) if another thread makes progress while a rank
frees such a communicator, and the late answer to the communicator's first message arrives. So threads of this library
call MPI through `poll`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_PAUSE_S = 50e-6
_MOST_S = 0.1  # longest wait for a poll of another thread; a poll normally takes some microseconds
# The longest stops of polls, in seconds. The stop for `Free` is short: `Free` calls the program's functions that delete
# attributes, and these may call collectives, whose steps between nodes need the polls.
WHILE_MADE_S, WHILE_FREED_S = 60.0, 0.1

# Lists, because threads append to them and remove from them without a lock.
_polls: list[None] = []
_stops: list[tuple[int, float]] = []  # the identifier of the thread, and when the stop ends


def poll(call: Callable[[], T]) -> T:
    """Call a function that polls MPI, outside the `polls_stopped` of other threads.

    Examples
    --------
    >>> poll(lambda: "polled")
    'polled'
    """
    while True:
        _polls.append(None)
        try:
            # A block of `polls_stopped` that begins from now on waits for this poll.
            if not _stops or _may_poll():
                return call()
        finally:
            _polls.pop()
        time.sleep(_PAUSE_S)


def _may_poll() -> bool:
    """Return whether this thread made one of the stops, or all stops have expired."""
    own, now, stops = threading.get_ident(), time.monotonic(), list(_stops)
    return any(thread == own for thread, _ in stops) or all(end < now for _, end in stops)


@contextmanager
def polls_stopped(seconds: float) -> Iterator[None]:
    """Make `poll` in other threads wait for the end of this block, or for `seconds`."""
    own = threading.get_ident(), time.monotonic() + _MOST_S + seconds
    _stops.append(own)
    try:
        end = time.monotonic() + _MOST_S
        while _polls and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        yield
    finally:
        _stops.remove(own)
