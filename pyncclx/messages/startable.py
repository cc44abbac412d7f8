"""Requests that are started again and again, on the same array: what persistent and partitioned ones have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.readers import address_reader_of
from ..errors import MPIError
from ..team.streams import stream_for
from .typed import TypedBuffer

if TYPE_CHECKING:
    from .base import MessageBase


class Startable:
    """What a request stands for. It is active from its start to its end.

    Attributes
    ----------
    active : bool
    buffer : Buffer
        Unless the request never looks at its array, as one of MPI.PROC_NULL may not.
    """

    buffer: Buffer | TypedBuffer
    _address: Callable[[], int] | None = None  # of the array, where it can be asked again

    def __init__(self, comm: MessageBase, operation: str) -> None:
        self.comm, self.operation, self.active = comm, operation, False
        self.endpoint, self._state = comm.endpoint, comm.state

    def _remember_address(self) -> None:
        """Remember where the array of `buffer` is."""
        self._address = address_reader_of(self.buffer.owner)
        self._first_address = self._address() if self._address is not None else 0

    def check(self) -> None:
        """Raise if it cannot be started."""
        if self.active:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}: the request has been started; Wait for it first")
        if not self._state.current or self.endpoint.comm is None:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}: the request's communicator has been freed")
        if self._address is not None and self._address() != self._first_address:
            text = "the array has other memory than when the request was made; make a new request"
            raise MPIError(MPI.ERR_BUFFER, f"{self.operation}: {text}")

    def stream(self) -> Any:
        """Return the stream that a start works on, which comes after the producer of the array."""
        return stream_for(self.endpoint.device, (self.buffer,), self.endpoint.caller)
