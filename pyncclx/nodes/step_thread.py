"""The thread of a communicator over nodes that enqueues programs, and waits between their steps in the host's place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..backends import Device


class StepThread:
    """Does one thing after the other; the thread is made when there is something to do.

    Parameters
    ----------
    device : Device
        That it uses.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has anything to do; programs that come next go there, too, or they would overtake."""
        return self._last is not None and not self._last.done()

    def do(self, function: Callable[[], None]) -> Future[None]:
        """Call a function there; earlier ones come first."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "pyncclx nodes")

        def call() -> None:
            with self._device.attached():
                function()

        self._last = self._executor.submit(call)
        return self._last

    def wait(self) -> None:
        """Wait until it has nothing to do: what it raises belongs to requests."""
        last, self._last = self._last, None
        if last is not None:
            last.exception()
