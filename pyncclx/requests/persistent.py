"""Persistent requests of collectives and messages on device arrays."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..errors import MPIError
from .host_receive import Undivided
from .request import Request
from .shown import handle_of, hide, set_handle, show
from .work import NOTHING, Startable, Starter, check

#: Weak references to this library's persistent requests, by handle.
BY_HANDLE: weakref.WeakValueDictionary[int, MPI.Request] = weakref.WeakValueDictionary()


class EmitsStarts:
    """A persistent request that emits an event at each start."""

    _event: tuple[str, str, int] | None = None

    def emits(self, operation: str, how: str, nbytes: int) -> None:
        """Set what the events report: operation, kind of execution, longest array's bytes."""
        self._event = operation, how, nbytes

    def prepare(self) -> None:
        """Prepare for MPI's `Start`; for example, check that the last round has ended."""


def begin_starts(requests: Sequence[MPI.Prequest]) -> float:
    """Emit events before one call starts requests; return the time."""
    began = events.now()
    for request in requests:
        if isinstance(request, EmitsStarts) and request._event is not None:
            events.start(request._event[0], began)
    return began


def emit_starts(requests: Sequence[MPI.Prequest], began: float) -> None:
    """Emit the events of requests that one call has started."""
    for request in requests:
        event = request._event if isinstance(request, EmitsStarts) else None
        if event is not None:
            events.emit(*event, began, together=len(requests))


class Prequest(EmitsStarts, MPI.Prequest, Request):
    """Persistent request of a collective or message on device arrays.

    It is an `mpi4py.MPI.Prequest`, and keeps the arrays alive. `Start` launches a kernel after the work on the current
    stream. Collectives, and all starts in a graph, run on the communicator's own stream. `Wait` makes the stream that
    is current at that time wait for the kernel; `Test` returns whether it has ended. For many requests, use the class
    methods of `pyncclx.Request` or `pyncclx.MPI.Request`, or mpi4py's `Waitall`. mpi4py's `Testall`, `Waitany` and
    similar calls may choose this request first and wait for it. mpi4py's `Startall` raises; call
    `pyncclx.Prequest.Startall` or `pyncclx.MPI.Prequest.Startall`.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> request = comm.Allreduce_init(MPI.IN_PLACE, comm.Alloc(4))
    >>> request.Start()
    >>> request.Wait()
    True
    """

    _work: Startable
    _own_handle: int
    _made_of: int  # the original handle
    _is_freed = False

    def __new__(cls, work: Startable | MPI.Request) -> Prequest:
        """Return the request of a persistent operation; copy a request as `Request` does."""
        if isinstance(work, MPI.Request):
            return cast(Prequest, work if isinstance(work, Undivided) else MPI.Prequest.__new__(MPI.Prequest, work))
        request = super().__new__(cls, MPI.COMM_SELF.Send_init([None, 0, MPI.BYTE], MPI.PROC_NULL))
        # `handle` and `BY_HANDLE` need the original handle. For MPI, the handle is that of a null request.
        request._own_handle, request._made_of = vars(MPI.Request)["handle"].__get__(request), handle_of(request)
        set_handle(request, handle_of(MPI.REQUEST_NULL))
        request._work = work
        BY_HANDLE[request._own_handle] = request
        return request

    def __bool__(self) -> bool:
        """Return whether the request has not been freed."""
        return not self._is_freed

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same request, or both are null."""
        return self is other if self else MPI.Prequest.__eq__(self, other)

    # mpi4py defines its own `__ne__`, so this class must override it too.
    def __ne__(self, other: object) -> bool:
        """Return whether the requests differ."""
        return not self == other

    __hash__ = MPI.Prequest.__hash__  # none

    @property
    def handle(self) -> int:  # type: ignore[override]
        """Handle for `fromhandle` of `pyncclx.MPI.Request`.

        While the request is active, mpi4py's own `fromhandle` accepts it too.
        """
        if not self:
            return MPI.REQUEST_NULL.handle
        if not self.is_active:
            return self._own_handle
        shown: int = vars(MPI.Request)["handle"].__get__(self)
        BY_HANDLE[shown] = self
        return shown

    def py2f(self) -> int:
        """Return a Fortran handle, for `f2py` of `pyncclx.MPI.Request`."""
        return MPI.Request.fromhandle(self.handle).py2f()

    def toint(self) -> int:
        """Return an integer handle, for `fromint` of `pyncclx.MPI.Request`."""
        return MPI.Request.fromhandle(self.handle).toint()

    def is_known_by(self, handle: int) -> bool:
        """Return whether a handle belongs to this request."""
        return bool(self) and handle in (self._own_handle, self.handle)

    def Start(self) -> None:
        """Launch the kernel after the work on the current stream, like mpi4py's `Start`.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request is active, or if it or its communicator has been freed. Class ERR_BUFFER,
            if the memory of a PyTorch array, or of a NumPy array on the host device, has moved since the request was
            made.
        """
        began = begin_starts([self]) if events.listeners else None
        if self._is_freed:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request has been freed")
        work = self._work
        check((work,))
        try:
            work.start()
        # Even if a signal handler raises after the start, the active request needs a handle for MPI.
        finally:
            show((self,))
        if began is not None:
            emit_starts([self], began)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all requests, like mpi4py's `Startall`.

        Requests of one communicator start in list order. One launch starts consecutive messages on device arrays. If
        `ordered_starts` is true, one launch also starts a communicator's consecutive collectives.

        Raises
        ------
        MPI.Exception
            The errors of `Start`; also class ERR_REQUEST, if a request is in the list twice.
        """
        began = begin_starts(requests) if events.listeners else None
        start_all(requests)
        if began is not None:
            emit_starts(requests, began)

    def Free(self) -> None:
        """Free the request and its memory; a message under way still completes.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request has been freed, or is a collective whose kernel has not ended.
        """
        if not self:
            raise MPIError(MPI.ERR_REQUEST, "Free: the request has been freed")
        super().Free()
        self._work.close()
        hide((self,), for_good=True)
        set_handle(self, self._made_of)
        MPI.Prequest.Free(self)
        self._work = cast(Startable, NOTHING)
        self._is_freed = True

    def free(self) -> None:
        """Free the request, unless it has been freed, like mpi4py's `free`."""
        if self:
            self.Free()


def start_all(requests: Sequence[Any]) -> None:
    """Start this library's and mpi4py's requests in list order; emit no events."""
    works: list[Startable] = []
    groups: list[tuple[Starter, list[Startable]]] = []
    for request in requests:
        if not isinstance(request, Prequest):
            _start_mixed(requests)
            return
        work = request._work
        if request._is_freed:
            raise MPIError(MPI.ERR_REQUEST, "Startall: a request has been freed")
        works.append(work)
        if not groups or groups[-1][0] is not work.starter:
            groups.append((work.starter, []))
        groups[-1][1].append(work)
    check(works)
    if len(set(map(id, works))) < len(works):
        raise MPIError(MPI.ERR_REQUEST, "Startall: a request is there twice")
    try:
        # Consecutive requests with the same starter are started together, because they may share a launch.
        for starter, together in groups:
            starter(together)
    finally:
        # Some requests may have been started before one raised.
        show(requests)


def _start_mixed(requests: Sequence[Any]) -> None:
    """Start consecutive requests of the same kind, this library's or MPI's, together."""
    for is_own, together in itertools.groupby(requests, lambda request: isinstance(request, Prequest)):
        some = list(together)
        if is_own:
            start_all(some)
            continue
        for request in some:
            if isinstance(request, EmitsStarts):
                request.prepare()
        MPI.Prequest.Startall(some)
