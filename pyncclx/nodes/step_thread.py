"""The thread of a communicator over nodes that enqueues programs, and waits between their steps in the host's place."""

from __future__ import annotations

from collections.abc import Callable

from ..backends import Device
from ..system.threads import Worker


class Doing:
    """A thing that the thread does."""

    def __init__(self, worker: Worker, function: Callable[[], None]) -> None:
        self._worker = worker
        self._error: BaseException | None = None
        self._number = worker.give(lambda: self._do(function))

    def _do(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Return whether it is over; without a thread, do it now."""
        if self._worker.is_alone:
            self._worker.wait(self._number)
        return self._worker.has_done(self._number)

    def result(self) -> None:
        """Wait until it is over, and raise what it has raised."""
        self._worker.wait(self._number)
        if self._error is not None:
            raise self._error


class StepThread:
    """Does one thing after the other; the thread is made when there is something to do.

    Parameters
    ----------
    device : Device
        That it uses.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._worker: Worker | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has anything to do; programs that come next go there, too, or they would overtake."""
        return self._worker is not None and not self._worker.has_done(self._worker.given)

    def do(self, function: Callable[[], None]) -> Doing:
        """Call a function there; earlier ones come first."""
        if self._worker is None:
            self._worker = Worker("pyncclx nodes")

        def call() -> None:
            with self._device.attached():
                function()

        return Doing(self._worker, call)

    def wait(self) -> None:
        """Wait until it has nothing to do: what it raises belongs to requests."""
        if self._worker is not None:
            self._worker.wait(self._worker.given)
