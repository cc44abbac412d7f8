"""Retired memory: unused, and freed when no kernel here may wait for a peer.

The driver may wait for all work of the process on the GPU before it frees or unmaps memory. That may include a
collective of another communicator, which a peer begins only after its next rendezvous with this rank. So retired memory
is freed while no work is in progress. Then the wait for the device is short, and the program's kernels have ended, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .. import backends
from ..backends import Device
from ..recovery.detector import DETECTOR
from ..recovery.losses import Watched
from ..requests.open_receives import OPEN_RECEIVES
from ..system.process import PerProcess


class Retired:
    """The retired memory of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, *frees: Callable[[], object]) -> None:
        """Add functions that free memory, for a later `free`; any thread may call it."""
        self._waiting.extend(frees)

    def free(self, *, at_once: bool = False, after: Watched | None = None) -> None:
        """Free the retired memory unless a kernel here may wait for a peer.

        `at_once` frees it on a GPU even then, because no memory is left. `after` is a communicator for whose kernels,
        including the program's, the caller has waited. Memory that another thread adds meanwhile is freed by a later
        call, because its kernels may have begun after this wait. Any thread may call this method.
        """
        taken: deque[Callable[[], object]] = deque()
        try:
            with suppress(IndexError):
                while True:
                    taken.append(self._waiting.popleft())
            if taken and self._may_free(at_once, after):
                # On the host device, a wait for streams would raise errors of other calls here.
                if self._device.name != "host":
                    self._device.synchronize()
                while taken:
                    taken.popleft()()
        finally:
            self._waiting.extendleft(reversed(taken))

    def _may_free(self, at_once: bool, after: Watched | None) -> bool:
        device = self._device
        # On the host device, no wait ends all use of the memory.
        at_once &= device.name != "host"
        return (at_once or _nothing_is_under_way(after)) and not device.is_capturing(device.current_stream())


def _nothing_is_under_way(after: Watched | None) -> bool:
    """Return whether no receive is open and no kernel here may wait for a peer.

    This includes kernels in graphs and kernels of the program.
    """
    return not OPEN_RECEIVES and not (DETECTOR.made is not None and DETECTOR.made.is_busy(after))


RETIRED = PerProcess(lambda: Retired(backends.select()))
