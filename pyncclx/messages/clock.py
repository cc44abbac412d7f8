"""The clock of a process's messages (L. Lamport, "Time, Clocks, and the Ordering of Events", CACM 21, 1978)."""

from __future__ import annotations

from ..requests.open_receives import LOCK


class LamportClock:
    """Gives each message a number above those of all messages that the process has sent or seen arrive.

    Kernels that receive are launched in the order of these numbers, so that streams never wait for each other in a
    circle: data that was sent can only wait, on its sender's stream, for messages of smaller clock.

    Attributes
    ----------
    now : int
        The highest so far; it never goes back.
    """

    def __init__(self) -> None:
        self.now = 0

    def next(self) -> int:
        """Return the clock of a message that is sent now."""
        with LOCK:
            self.now += 1
            return self.now

    def observe(self, clock: int) -> None:
        """A message with this clock has arrived: what is sent from now on may follow from it."""
        with LOCK:
            self.now = max(self.now, clock)
