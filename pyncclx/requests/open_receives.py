"""The open receives of this process: posted, and so far without a kernel on a stream.

Every function that gives a stream something that may wait for peers first calls `let_receives_leave`. The stream may
wait for the very peer whose message a receive is for, and that peer for the receive, whose kernel must then not come
behind the wait on the same stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..system.process import held, lock


class OpenReceive(Protocol):
    """A receive that is open.

    Attributes
    ----------
    clock : int
        Of its message; receives are launched in the order of their clocks.
    has_arrived : bool
        Whether its envelope has.
    launched : bool
        Whether its kernel is.
    is_posted : bool
        Whether it is, or was, in the list.
    is_awaited : bool
        Whether a call waits for it that makes the program's stream wait, too.
    is_held_back : bool
        Whether its kernel must not be launched yet, though its message has arrived.
    """

    clock: int
    has_arrived: bool
    launched: bool
    is_posted: bool
    is_awaited: bool

    @property
    def is_held_back(self) -> bool:
        """As above."""

    def poll(self) -> bool:
        """Look whether its envelope has arrived; True once."""

    def leave_stream(self) -> None:
        """Let its kernel come after what its stream has by now, but not on that stream."""

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream."""

    def launch(self) -> None:
        """Launch the kernel that moves the data."""

    def launch_first(self, receives: Sequence[Any], first: int) -> int:
        """Launch this one, which is at `first`, with those after it that one launch may do; return how far that goes.

        The number returned is the index of the first receive that has still to be launched.
        """


OPEN_RECEIVES: list[OpenReceive] = held([])
LOCK = lock()  # held to change the list, or to look for a message of a receive in it


def let_receives_leave() -> None:
    """Let open receives leave their streams, which are about to get what may wait for peers."""
    if OPEN_RECEIVES:
        with LOCK:
            for receive in OPEN_RECEIVES:
                receive.leave_stream()
