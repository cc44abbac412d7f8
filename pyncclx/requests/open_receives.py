"""The open receives of this process: posted, but their kernels not yet launched.

Before you enqueue work that waits for a peer, call `let_receives_leave`, which moves the open receives to other
streams. Otherwise the kernel of such a receive would run only after that work. If the peer first waits for the receive,
both ranks deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..system.process import held, lock


class OpenReceive:
    """A posted receive whose kernel has not been launched.

    Attributes
    ----------
    clock : int
        Lamport clock of its message. Receives are launched in the order of their clocks.
    has_arrived : bool
        Whether its envelope has arrived.
    is_polled : bool
        Whether a poll is in progress. In it, a signal handler or destructor of the program may call MPI, too.
    launched : bool
        Whether its kernel has been launched.
    is_posted : bool
        Whether it has been posted. It stays True after the receive is removed from `OPEN_RECEIVES`.
    is_awaited : bool
        Whether a call waits for it. Such a call makes the program's stream wait too.
    start_event : object
        Event that its kernel waits for on the side stream. None while the kernel is to run on the receive's own stream.
    """

    clock = 0
    has_arrived = is_polled = launched = is_posted = is_awaited = False
    start_event: Any = None

    @property
    def is_held_back(self) -> bool:
        """Whether its kernel must not be launched yet, although its message has arrived."""
        return False

    def poll(self) -> bool:
        """Poll for the envelope. Return True once: in the call that finds it."""
        raise NotImplementedError

    def leave_stream(self) -> None:
        """Move the kernel to the side stream, after the earlier work of its own stream."""

    def is_due(self) -> bool:
        """Return whether the kernel can run now, and the sender may be waiting for it."""
        return True

    def launch(self) -> None:
        """Launch the kernel that moves the data."""
        raise NotImplementedError

    def launch_first(self, _: Sequence[Any], first: int) -> int:
        """Launch this receive, at index `first`, and those after it that share its launch.

        Return the index of the first receive that still has to be launched.
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
