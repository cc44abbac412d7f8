"""Free unused memory later, when no kernel of this process may wait for a peer.

Before the driver frees or unmaps memory, it may wait for all work of the process on the GPU. This work may include a
collective of another communicator, which a peer begins only after its next rendezvous with this rank. So such memory is
*retired*, and freed later, while no kernel of this library waits. Then the driver's wait is short, and kernels of the
program that used the memory have ended too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .. import backends
from ..backends import Device
from ..failures.comm_failures import Monitored
from ..failures.detector import DETECTOR
from ..requests.open_receives import OPEN_RECEIVES
from ..system.process import PerProcess


class Retired:
    """The retired memory of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, *frees: Callable[[], object]) -> None:
        """Add functions that a later `free` calls; any thread may call this method."""
        self._waiting.extend(frees)

    def free(self, *, at_once: bool = False, after: Monitored | None = None) -> None:
        """Free the retired memory unless a kernel of this process may wait for a peer.

        Any thread may call this method. Memory that another thread adds during the call is freed by a later call,
        because kernels that use it may have started after this call has waited for the device.

        Parameters
        ----------
        at_once : bool
            Free the memory even if a kernel may wait for a peer, because the GPU has no free memory. Without effect on
            the host device.
        after : communicator, optional
            Its kernels do not count: the caller has already waited for them.
        """
        taken: deque[Callable[[], object]] = deque()
        try:
            with suppress(IndexError):
                while True:
                    taken.append(self._waiting.popleft())
            if taken and self._may_free(at_once, after):
                # On the host device, a wait for streams would raise the errors of other calls.
                if self._device.name != "host":
                    self._device.synchronize()
                while taken:
                    taken.popleft()()
        finally:
            self._waiting.extendleft(reversed(taken))

    def _may_free(self, at_once: bool, after: Monitored | None) -> bool:
        device = self._device
        # On the host device, memory may be in use even after a wait.
        at_once &= device.name != "host"
        return (at_once or _nothing_is_under_way(after)) and not device.is_capturing(device.current_stream())


def _nothing_is_under_way(after: Monitored | None) -> bool:
    """Return whether no receive is open and no kernel may be waiting for a peer.

    This includes kernels in graphs and kernels of the program.
    """
    return not OPEN_RECEIVES and not (DETECTOR.made is not None and DETECTOR.made.is_busy(after))


RETIRED = PerProcess(lambda: Retired(backends.select()))
