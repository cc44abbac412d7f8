"""The receives of this process that are open: posted, and without a kernel on a stream so far.

Whoever gives a stream what may wait for peers looks here first. It may wait for the very peer whose message a receive
is for, and that one for the receive, which must not come behind it on the same stream, then.
"""

from __future__ import annotations

import threading
from typing import Protocol


class OpenReceive(Protocol):
    """A receive that is open."""

    clock: int
    has_arrived: bool  # its message
    launched: bool
    is_awaited: bool  # by a call that makes the program's stream wait for it

    def poll(self) -> bool:
        """Look whether its envelope is here; True once."""

    def leave_stream(self) -> None:
        """Leave the order of its stream, as that is by now."""

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream."""

    def launch(self) -> None:
        """Move the data."""


OPEN_RECEIVES: list[OpenReceive] = []
LOCK = threading.RLock()  # of whoever changes the list, or looks for a message of a receive in it


def let_receives_leave() -> None:
    """Let open receives go on, whatever their streams are given to wait for after this."""
    if OPEN_RECEIVES:
        with LOCK:
            for receive in OPEN_RECEIVES:
                receive.leave_stream()
