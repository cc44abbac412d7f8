"""Memory that this process has given up: it is freed when no kernel here may be waiting for a peer.

The driver may wait for all that the process has on the GPU before it frees or unmaps memory. A collective of another
communicator may be there, which a peer begins only after its next meeting with this rank. So what is given up waits for
a moment at which nothing is under way; then a wait for the device is short, and kernels of the program have ended, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .. import backends
from ..backends import Device
from ..recovery.detector import DETECTOR
from ..requests.open_receives import OPEN_RECEIVES
from ..system.process import PerProcess


class Retired:
    """What waits to be freed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, *frees: Callable[[], object]) -> None:
        """Let functions that free memory be called later, by `free`; by any thread."""
        self._waiting.extend(frees)

    def free(self, *, at_once: bool = False) -> None:
        """Free what can be freed now, or with `at_once` all, since there is no memory left."""
        device = self._device
        if not self._waiting or not (at_once or _nothing_is_under_way()):
            return
        if device.is_capturing(device.current_stream()):
            return
        if device.name != "host":  # whose streams keep errors for those who wait for them
            device.synchronize()
        while self._waiting:
            self._waiting.popleft()()


def _nothing_is_under_way() -> bool:
    """Return whether no receive is open, and no kernel here, graphs apart, may be waiting for a peer."""
    return not OPEN_RECEIVES and not (DETECTOR.made is not None and DETECTOR.made.is_busy())


RETIRED = PerProcess(lambda: Retired(backends.select()))
