"""Receives into host arrays whose requests the program has dropped.

MPI still receives the message. No method of the request will look for an envelope, so the calls and the thread that
make progress do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ...requests.open_receives import LOCK
from ...requests.shown import set_handle
from ...system.process import held
from ..progress.pending_sends import Follows, follow_later

#: A view that Python never destroys; for receives whose memory mpi4py does not hold by a view.
LASTING = memoryview(b"")
#: Dropped receives that may not be over; see `serve_dropped`.
DROPPED: list[DroppedReceive] = held([])


class Memory(Protocol):
    """The memory that MPI receives into; see `HostLanding`."""

    def has_envelope(self) -> bool: ...
    def fetch_if_ready(self, *, is_received: bool) -> bool: ...


class DroppedReceive(Follows):
    """A receive whose request the program has dropped before completing it.

    The program may have completed the receive through a copy of the handle. So this class never completes the request
    in MPI; it only queries the status.
    """

    __slots__ = ("_has_come", "_memory", "_request")

    def __new__(cls, *_: object) -> DroppedReceive:
        """Return a weak reference to a lasting view; it needs no callback."""
        return super().__new__(cls, LASTING)

    def __init__(self, memory: Memory, handle: int) -> None:
        self._memory: Memory | None = memory
        self._request, self._has_come = MPI.Request(), False
        set_handle(self._request, handle)

    @property
    def is_under_way(self) -> bool:
        """Whether the message has not arrived, or its data still has to be fetched."""
        return not self._is_over(lambda memory: self._is_received() and not memory.has_envelope())

    def go_on(self) -> None:
        """Fetch the data once the message has arrived and the data can be read."""
        # If the program has completed a copy of the handle, MPI may use the handle for another request.
        self._is_over(lambda memory: memory.fetch_if_ready(is_received=self._is_received()))

    def _is_over(self, test: Callable[[Memory], bool]) -> bool:
        """Return whether nothing is left to do, as `test` finds in the memory."""
        with LOCK:
            try:
                if self._memory is not None and test(self._memory):
                    self._memory = None
            except BaseException as error:
                # No call is left that could raise an error.
                if own_error(error) is None:
                    raise
                self._memory = None
            return self._memory is None

    def _is_received(self) -> bool:
        """Return whether MPI has received the message."""
        if not self._has_come:
            try:
                self._has_come = MPI.Request.Get_status(self._request)
            except MPI.Exception:
                # The message was too long, or the program has freed a copy of the handle.
                self._has_come = True
        return self._has_come


def follow_dropped(receive: DroppedReceive) -> None:
    """Make progress with a dropped receive from now on. Destructors may call this."""
    follow_later(receive)
    DROPPED.append(receive)


def serve_dropped() -> None:
    """Make progress with dropped receives. Call it if `DROPPED` is not empty.

    This is needed before the process's first operation on device arrays, when there is no monitor thread. It also
    ensures that a message that has arrived is in its array after the call, if the sender has written the data.
    """
    with LOCK:
        for receive in DROPPED[:]:
            receive.go_on()
            if not receive.is_under_way:
                DROPPED.remove(receive)
