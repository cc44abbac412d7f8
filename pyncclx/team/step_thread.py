"""Threads for work that a program does not wait for, such as steps over nodes."""

from __future__ import annotations

from collections.abc import Callable

from ..backends import Device
from ..system.threads import Worker


class Doing:
    """A function that the thread runs, and its result."""

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
        """Return whether the function has ended; without a thread, run it now."""
        if self._worker.is_alone:
            self._worker.wait(self._number)
        return self._worker.has_done(self._number)

    def wait(self) -> None:
        """Wait until the function has ended."""
        self._worker.wait(self._number)

    def result(self) -> None:
        """Wait until the function has ended, and raise its error."""
        self.wait()
        if self._error is not None:
            raise self._error


class StepThread:
    """A thread that runs functions in order; it is made at the first one.

    Parameters
    ----------
    device : Device
        The device that the functions use.
    name : str
        Name of the thread.
    """

    def __init__(self, device: Device, name: str = "pyncclx nodes") -> None:
        self._device, self._name = device, name
        self._worker: Worker | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function is waiting or running.

        Then later steps must run in the thread too; otherwise they would overtake those in the thread.
        """
        return self._worker is not None and not self._worker.has_done(self._worker.given)

    def do(self, function: Callable[[], None]) -> Doing:
        """Run a function in the thread, after all earlier ones."""
        if self._worker is None:
            self._worker = Worker(self._name)

        def call() -> None:
            with self._device.attached():
                function()

        return Doing(self._worker, call)

    def wait(self) -> None:
        """Wait until all functions have ended; requests raise their errors."""
        if self._worker is not None:
            self._worker.wait(self._worker.given)

    def rest(self, seconds: float) -> None:
        """Wait until all functions have ended, for at most `seconds`."""
        if self._worker is not None and not self._worker.is_alone:
            self._worker.rest(self._worker.given, seconds)
