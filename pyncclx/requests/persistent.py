"""Persistent requests of collectives on device arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from mpi4py import MPI

from .. import events
from ..errors import MPIError
from .request import Request, Work


class Startable(Work, Protocol):
    """The operation that a persistent request stands for: it can be started again and again."""

    active: bool  # from start to finish

    @property
    def stream(self) -> Callable[[], Any]:
        """Returns the stream that is current."""

    @property
    def is_only_a_launch(self) -> bool:
        """Whether a start has nothing else to do."""

    def start(self) -> None:
        """Launch after what the current stream has."""

    def start_with(self, others: Sequence[Any], stream: Any) -> None:
        """Launch this one and others of its kind after it, by one launch for each communicator."""


class EmitsStarts:
    """A persistent request that emits an event at each start."""

    _event: tuple[str, str, int] | None = None

    def emits(self, operation: str, how: str, nbytes: int) -> None:
        """Set the operation of the events, how it is done, and the length of its longest array."""
        self._event = operation, how, nbytes


def emit_starts(requests: Sequence[MPI.Prequest], began: float) -> None:
    """Emit the events of requests that one call has started."""
    for request in requests:
        event = request._event if isinstance(request, EmitsStarts) else None
        if event is not None:
            events.emit(*event, began, together=len(requests))


class Prequest(EmitsStarts, MPI.Prequest, Request):
    """An `mpi4py.MPI.Prequest` of a collective on device arrays, which it keeps.

    `Start` launches the kernel on a stream of the communicator's own, after what the current stream has then. `Wait`
    makes the stream that is current wait for it, and `Test` returns whether the kernel has ended; so do the calls for
    many requests of `pyncclx.Request` and `pyncclx.MPI.Request`. mpi4py's own calls for many find a request that has
    nothing to do.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> request = comm.Allreduce_init(MPI.IN_PLACE, comm.Alloc(4))
    >>> request.Start()
    >>> request.Wait()
    True
    """

    _work: Startable

    def __new__(cls, work: Startable) -> Prequest:
        """Make the request of a call."""
        request = super().__new__(cls, MPI.COMM_SELF.Send_init([None, 0, MPI.BYTE], MPI.PROC_NULL))
        request._work = work
        return request

    @property
    def is_active(self) -> bool:
        """Whether it was started and not yet waited for."""
        return bool(self) and self._work.active

    def Start(self) -> None:
        """Launch the kernel.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if it is active or was freed, or its communicator was; ERR_BUFFER, if an array, PyTorch's
            or NumPy's on the host device, has been given other memory since the request was made.
        """
        began = events.now() if events.listeners else None
        if not self:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request has been freed")
        self._work.start()
        if began is not None:
            emit_starts([self], began)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all; those of one communicator in the order of the list. As mpi4py's `Startall`.

        Those of one communicator's collectives on device arrays that follow each other take one launch.
        """
        began = events.now() if events.listeners else None
        start_all(requests)
        if began is not None:
            emit_starts(requests, began)

    def Free(self) -> None:
        """Free the request and what it keeps; an active one only when its kernel has ended.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the kernel has not ended.
        """
        if not self._is_over():
            raise MPIError(MPI.ERR_REQUEST, "Free: the request is active; Wait for it first")
        self._finish()
        MPI.Prequest.Free(self)
        del self._work


def start_all(requests: Sequence[MPI.Prequest]) -> None:
    """Start requests of ours and of mpi4py's in the order of the list, without events."""
    for ours, together in itertools.groupby(requests, lambda request: isinstance(request, Prequest)):
        if ours:
            _start_ours(cast(Iterable[Prequest], together))
        else:
            MPI.Prequest.Startall(list(together))


def _start_ours(requests: Iterable[Prequest]) -> None:
    """Start several, by one launch for each communicator if nothing else has to be done between them."""
    works = []
    for request in requests:
        if not request:
            raise MPIError(MPI.ERR_REQUEST, "Startall: a request has been freed")
        works.append(request._work)
    streams = [work.stream() for work in works if work.is_only_a_launch]
    if len(works) > 1 and len(streams) == len(works) and all(stream == streams[0] for stream in streams):
        works[0].start_with(works[1:], streams[0])
    else:
        for work in works:
            work.start()
