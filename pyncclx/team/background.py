"""Let a thread launch those nonblocking calls for which the ranks have to meet.

In MPI a nonblocking collective returns immediately, whatever the other ranks do. But the first call of a kind needs
memory and kernels that all ranks prepare together. So a thread of each rank prepares them, on a channel of its own
(`mpi_bootstrap`), and then launches the call's kernel. Later calls on the communicator wait for the thread, or are left
to it as well.

Steps of calls over nodes have a thread, too (`StepThread`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import mpi_bootstrap

from .. import backends
from ..backends import Device
from ..errors import Aborted, RankFailed, RanksMissing, Revoked
from ..system.mpi_library import before_finalize
from ..system.process import PerProcess
from ..system.threads import Worker
from .kept import Scratch

_FOR_END_S = 1.0  # longest wait for each thread before MPI is finalized


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
    """A thread that runs functions in order; the first function starts it.

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

        If so, later steps must run in the thread, too; otherwise they would overtake the steps in the thread.
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


class NotYet(Exception):
    """Raised where a call needs other ranks, but must return immediately."""


class _Closed:
    """A channel that refuses to communicate."""

    def __getattr__(self, name: str) -> Any:
        raise NotYet


def check_channel(channel: Any) -> None:
    """Raise `NotYet` if ranks must not meet on a channel."""
    if isinstance(channel, _Closed):
        raise NotYet


def alone(comm: Any) -> Any:
    """Return a twin of a communicator that raises `NotYet` instead of communicating.

    Use the twin to check the arguments of a call without waiting for other ranks.
    """
    return _twin(comm, _Closed())


def _twin(comm: Any, channel: Any) -> Any:
    """Return an object with a communicator's handle and state, but another channel.

    The object does not keep the communicator from being dropped; see `State.is_dropped`.
    """
    twin = type(comm)(comm)
    twin._state, twin.channel = comm.state, channel
    return twin


def scratch_alone(state: Any) -> Scratch:
    """Return scratch memory for calls on a twin of `alone`, which cannot make a Team."""
    if state.scratch is None:
        state.scratch = Scratch(backends.select(), lambda: state)
    made: Scratch = state.scratch
    return made


class Apart:
    """A communicator's channel for the thread. Creation is collective, without waits.

    Attributes
    ----------
    comm : Intracomm
        An object of the communicator whose ranks meet on the channel.
    """

    def __init__(self, comm: Any) -> None:
        self._channel = mpi_bootstrap.Channel(comm)
        self.comm = _twin(comm, self._channel)
        _MADE.get().add(self)

    def end(self) -> None:
        """Make the thread raise if it waits for other ranks."""
        self._channel.end()

    def close(self) -> None:
        """Release the channel, before the communicator is freed."""
        self._channel.close()


class Background(StepThread):
    """The calls of one communicator that a thread has to launch, in order.

    Attributes
    ----------
    caller : int
        The thread of the program that has made the calls.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, "pyncclx first calls")
        self.caller = threading.get_ident()
        self._lost: Exception | None = None
        _RUNNING.get().add(self)

    def do(self, function: Callable[[], None]) -> Doing:
        """Run a function in the thread after all earlier ones.

        If an earlier function has raised because a rank was missing or has failed, `function` does not run, and its
        result is the same error.
        """

        def call() -> None:
            if self._lost is not None:
                raise self._lost
            _ACTING.caller = self.caller
            try:
                function()
            except (RankFailed, RanksMissing, Revoked, Aborted) as error:
                self._lost = error
                raise

        return super().do(call)


def caller() -> int:
    """Return the program's thread that this thread acts for; else this thread."""
    return getattr(_ACTING, "caller", threading.get_ident())


_ACTING = threading.local()
_MADE: PerProcess[WeakSet[Apart]] = PerProcess(WeakSet)


def _running() -> WeakSet[Background]:
    """Return a set for calls in progress; their waits end before MPI is finalized."""
    running: WeakSet[Background] = WeakSet()

    def end() -> None:
        for apart in list(_MADE.get()):
            apart.end()
        for each in list(running):
            each.rest(_FOR_END_S)

    before_finalize(end)
    return running


_RUNNING = PerProcess(_running)
