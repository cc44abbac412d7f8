"""Request classes of `pyncclx.MPI`, whose calls on many requests take staged ones.

Staged nonblocking calls need no class of their own, see `completion.copy_back_on_completion`. Persistent ones are
`persistent.StagedPrequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI

from .. import events
from ..requests import persistent
from ..requests.host_receive import HostReceive, HostReceiveRequest
from ..requests.objects import ObjectRequests
from ..requests.partitioned import PartitionedRequest
from ..requests.request import Request as OwnRequest
from ..requests.sent_to_itself import SentToItself
from .completion import copy_back_completed
from .stand_ins import StandIn


def _completing(name: str, completed: Callable[[int, Any], Iterable[int]]) -> Any:
    """Return mpi4py's class method, extended to staged requests.

    `completed` returns the indices of the requests that the result names.
    """
    original: Callable[..., Any] = getattr(MPI.Request, name)
    with_ours = getattr(ObjectRequests, name)  # takes requests of messages with device arrays

    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        kinds = set(map(type, requests))
        if kinds <= _OF_HOST_ARRAYS:
            return original(requests, *args, **kwargs)
        if kinds <= _NOT_STAGED:
            return with_ours(requests, *args, **kwargs)
        ours = any(isinstance(request, (ObjectRequests, HostReceive, SentToItself)) for request in requests)
        result = (with_ours if ours else original)(requests, *args, **kwargs)
        indices = completed(len(requests), result)
        copy_back_completed(requests[index] for index in indices if index >= 0)  # MPI.UNDEFINED is negative
        return result

    method.__name__, method.__doc__ = name, original.__doc__
    return classmethod(method)


class Request(StandIn, MPI.Request):
    """An `mpi4py.MPI.Request` whose calls on many requests take staged ones."""

    like = MPI.Request

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return the request of a handle; a persistent one on device arrays is itself."""
        known = persistent.BY_HANDLE.get(handle)
        if known and (known.is_known_by(handle) if isinstance(known, persistent.Prequest) else known.handle == handle):
            return known
        return super().fromhandle(handle)

    Waitall = _completing("Waitall", lambda n, _: range(n))
    waitall = _completing("waitall", lambda n, _: range(n))
    Testall = _completing("Testall", lambda n, flag: range(n if flag else 0))
    testall = _completing("testall", lambda n, result: range(n if result[0] else 0))
    Waitany = _completing("Waitany", lambda _, index: [index])
    waitany = _completing("waitany", lambda _, result: [result[0]])
    Testany = _completing("Testany", lambda _, result: [result[0]] if result[1] else [])
    testany = _completing("testany", lambda _, result: [result[0]] if result[1] else [])
    Waitsome = _completing("Waitsome", lambda _, indices: indices or [])
    waitsome = _completing("waitsome", lambda _, result: result[0] or [])
    Testsome = _completing("Testsome", lambda _, indices: indices or [])
    testsome = _completing("testsome", lambda _, result: result[0] or [])


# Requests that have nothing to copy back.
_OF_HOST_ARRAYS = {MPI.Request, Request}
_NOT_STAGED = {*_OF_HOST_ARRAYS, HostReceiveRequest, SentToItself, OwnRequest, persistent.Prequest, PartitionedRequest}

REQUEST_NULL = Request(MPI.REQUEST_NULL)
Request.constants = {"REQUEST_NULL": REQUEST_NULL}


class Prequest(persistent.EmitsStarts, MPI.Prequest, Request):
    """An `mpi4py.MPI.Prequest`; `Startall` takes staged ones among others."""

    like = MPI.Prequest

    def Start(self) -> None:
        """Copy device arrays to the host if staged, and start the operation."""
        began = persistent.begin_starts([self]) if events.listeners else None
        self.prepare()
        super().Start()
        if began is not None:
            persistent.emit_starts([self], began)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Start several requests, staged ones among others."""
        began = persistent.begin_starts(requests) if events.listeners else None
        persistent.start_all(requests)
        if began is not None:
            persistent.emit_starts(requests, began)


class Grequest(MPI.Grequest, Request):
    """An `mpi4py.MPI.Grequest`."""

    like = MPI.Grequest

    @classmethod
    def Start(cls, *args: Any, **kwargs: Any) -> Grequest:
        """Start a generalized request (mpi4py's method)."""
        return cls(super().Start(*args, **kwargs))
