"""The open receives of this process: posted, but their kernels not yet launched.

Call `let_receives_leave` before you enqueue work that waits for a peer: it moves these receives to other streams.
Behind that work a receive's kernel could not run, and if the peer waits for the receive, both ranks would deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..system.process import held, lock


class OpenReceive:
    """A receive that is open.

    Attributes
    ----------
    clock : int
        Lamport clock of its message. Receives are launched in the order of their clocks.
    has_arrived : bool
        Whether its envelope has arrived.
    launched : bool
        Whether its kernel has been launched.
    is_posted : bool
        Whether it is, or was, in `OPEN_RECEIVES`.
    is_awaited : bool
        Whether a call waits for it. Such a call makes the program's stream wait, too.
    start_event : object
        None while its kernel belongs on its own stream.
    """

    clock = 0
    has_arrived = launched = is_posted = is_awaited = False
    start_event: Any = None

    @property
    def is_held_back(self) -> bool:
        """Whether its kernel must not be launched yet, though its message has arrived."""
        return False

    def poll(self) -> bool:
        """Poll for its envelope. Return True once, when it has arrived."""
        raise NotImplementedError

    def leave_stream(self) -> None:
        """Launch its kernel on another stream later, after the work its stream has now."""

    def is_due(self) -> bool:
        """Return whether the sender may be waiting for this receive's kernel alone.

        If so, the receive has left its stream.
        """
        return True

    def launch(self) -> None:
        """Launch the kernel that moves the data."""
        raise NotImplementedError

    def launch_first(self, _: Sequence[Any], first: int) -> int:
        """Launch this receive, at index `first`, and those after it that fit one launch.

        Return the index of the first receive that has still to be launched.
        """
        self.launch()
        return first + 1


OPEN_RECEIVES: list[OpenReceive] = held([])
#: Held while the list is changed, or a receive in it is polled.
LOCK = lock()


def let_receives_leave() -> None:
    """Move open receives off their streams. Call it before enqueuing waits for peers."""
    if OPEN_RECEIVES:
        with LOCK:
            for receive in OPEN_RECEIVES:
                if receive.start_event is None:
                    receive.leave_stream()
