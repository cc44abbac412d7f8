"""Persistent requests of collectives and messages on device arrays."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..errors import MPIError
from .request import Request
from .shown import handle_of, hide, set_handle, show
from .work import NOTHING, Startable, Starter, check

#: Persistent requests of this library, by their handles; weakly.
BY_HANDLE: weakref.WeakValueDictionary[int, MPI.Request] = weakref.WeakValueDictionary()


class EmitsStarts:
    """A persistent request that emits an event at each start."""

    _event: tuple[str, str, int] | None = None

    def emits(self, operation: str, how: str, nbytes: int) -> None:
        """Set the operation of the events, how it is done, and the length of its longest array."""
        self._event = operation, how, nbytes

    def prepare(self) -> None:
        """Do what comes before MPI starts a request of its own."""


def begin_starts(requests: Sequence[MPI.Prequest]) -> float:
    """Give hooks the events of requests that one call is about to start; return the time."""
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
    """An `mpi4py.MPI.Prequest` of a collective or a message on device arrays, which it keeps.

    `Start` launches a kernel after what the current stream has then; that of a collective, and all in a graph, on a
    stream of the communicator's own. `Wait` makes the stream that is current wait for it, and `Test` returns whether
    the kernel has ended; so do the calls for many requests of `pyncclx.Request` and `pyncclx.MPI.Request`, and mpi4py's
    own `Waitall`. mpi4py's `Testall`, `Waitany` and the like may take it first and wait. `Startall` is that of
    `pyncclx.Prequest` or `pyncclx.MPI.Prequest`: mpi4py's own raises.

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
    _made_of: bytes  # its memory in the beginning
    _is_freed = False

    def __new__(cls, work: Startable) -> Prequest:
        """Make the request of a call."""
        request = super().__new__(cls, MPI.COMM_SELF.Send_init([None, 0, MPI.BYTE], MPI.PROC_NULL))
        # Its own handle, by which it is known: `handle` needs this attribute. MPI sees that of a null request.
        request._own_handle, request._made_of = vars(MPI.Request)["handle"].__get__(request), handle_of(request)
        set_handle(request, handle_of(MPI.REQUEST_NULL))
        request._work = work
        BY_HANDLE[request._own_handle] = request
        return request

    def __bool__(self) -> bool:
        """Whether it has not been freed."""
        return not self._is_freed

    def __eq__(self, other: object) -> bool:
        """Whether it is this one, or both are null."""
        return self is other if self else MPI.Prequest.__eq__(self, other)

    def __ne__(self, other: object) -> bool:  # mpi4py has its own
        """Return the opposite."""
        return not self == other

    __hash__ = MPI.Prequest.__hash__  # none

    @property
    def handle(self) -> int:  # type: ignore[override]
        """A handle for `fromhandle` of `pyncclx.MPI.Request`, and while the request is active for that of mpi4py's."""
        if not self:
            return MPI.REQUEST_NULL.handle
        if not self.is_active:
            return self._own_handle
        shown: int = vars(MPI.Request)["handle"].__get__(self)
        BY_HANDLE[shown] = self
        return shown

    def is_known_by(self, handle: int) -> bool:
        """Return whether a handle is that of the request."""
        return bool(self) and handle in (self._own_handle, self.handle)

    def Start(self) -> None:
        """Launch the kernel.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if it is active or was freed, or its communicator was; ERR_BUFFER, if an array, PyTorch's
            or NumPy's on the host device, has been given other memory since the request was made.
        """
        began = begin_starts([self]) if events.listeners else None
        if self._is_freed:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request has been freed")
        work = self._work
        check((work,))
        if work.starts_alone:
            work.start()
        else:
            work.starter((work,))
        show((self,))
        if began is not None:
            emit_starts([self], began)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all; those of one communicator in the order of the list. As mpi4py's `Startall`.

        Messages on device arrays that follow each other take one launch; so do a communicator's collectives if it has
        `ordered_starts`.
        """
        began = begin_starts(requests) if events.listeners else None
        start_all(requests)
        if began is not None:
            emit_starts(requests, began)

    def Free(self) -> None:
        """Free the request and what it keeps. A message that is under way goes on.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if it has been freed, or is a collective whose kernel has not ended.
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
        """Free the request, unless it has been freed. As mpi4py's free."""
        if self:
            self.Free()


def start_all(requests: Sequence[Any]) -> None:
    """Start requests of ours and of mpi4py's in the order of the list, without events."""
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
        for starter, together in groups:  # those of a kind that follow each other may take one launch
            starter(together)
    finally:  # of those that have been started, if another one cannot be
        show(requests)


def _start_mixed(requests: Sequence[Any]) -> None:
    """Start ours that follow each other together, and so MPI's."""
    for is_own, together in itertools.groupby(requests, lambda request: isinstance(request, Prequest)):
        some = list(together)
        if is_own:
            start_all(some)
            continue
        for request in some:
            if isinstance(request, EmitsStarts):
                request.prepare()
        MPI.Prequest.Startall(some)
