"""Retired memory: this process uses it no more, and frees it when no kernel here may be waiting for a peer.

The driver may wait for all that the process has on the GPU before it frees or unmaps memory. A collective of another
communicator may be there, which a peer begins only after its next meeting with this rank. So retired memory is freed
while nothing is under way: then a wait for the device is short, and kernels of the program have ended, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .. import backends
from ..backends import Device
from ..recovery.detector import DETECTOR
from ..recovery.watched import Watched
from ..requests.open_receives import OPEN_RECEIVES
from ..system.process import PerProcess


class Retired:
    """The retired memory of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, *frees: Callable[[], object]) -> None:
        """Let functions that free memory be called later, by `free`; by any thread."""
        self._waiting.extend(frees)

    def free(self, *, at_once: bool = False, after: Watched | None = None) -> None:
        """Free what can be freed now, or with `at_once` all, since there is no memory left; by any thread.

        `after` is a communicator of which the caller has waited for all kernels, also those that the program launches.
        What another thread adds meanwhile is freed by a later call: its kernels may have begun after the wait here.
        """
        taken: deque[Callable[[], object]] = deque()
        try:
            with suppress(IndexError):
                while True:
                    taken.append(self._waiting.popleft())
            if taken and self._may_free(at_once, after):
                if self._device.name != "host":  # a wait for its streams would raise other calls' errors here
                    self._device.synchronize()
                while taken:
                    taken.popleft()()
        finally:
            self._waiting.extendleft(reversed(taken))

    def _may_free(self, at_once: bool, after: Watched | None) -> bool:
        device = self._device
        at_once &= device.name != "host"  # it has no wait after which no kernel uses the memory
        return (at_once or _nothing_is_under_way(after)) and not device.is_capturing(device.current_stream())


def _nothing_is_under_way(after: Watched | None) -> bool:
    """Return whether no receive is open, and no kernel here, in a graph or the program's, may be waiting for a peer."""
    return not OPEN_RECEIVES and not (DETECTOR.made is not None and DETECTOR.made.is_busy(after))


RETIRED = PerProcess(lambda: Retired(backends.select()))
