"""The Lamport clock of a process's messages.

Source: L. Lamport, "Time, Clocks, and the Ordering of Events", CACM 21, 1978.
"""

from __future__ import annotations

from ...requests.open_receives import LOCK


class LamportClock:
    """Source of message clocks. Each exceeds the clocks sent or received before.

    Kernels that receive are launched in the order of these clocks. Sent data can wait, on its sender's stream, only for
    messages of smaller clock. So streams never wait for each other in a circle.

    Attributes
    ----------
    now : int
        The highest clock so far; it never decreases.
    """

    def __init__(self) -> None:
        self.now = 0

    def next(self) -> int:
        """Return the clock of a new message to send."""
        with LOCK:
            self.now += 1
            return self.now

    def observe(self, clock: int) -> None:
        """Raise the clock to that of an arrived message, so that later sends exceed it."""
        with LOCK:
            self.now = max(self.now, clock)
