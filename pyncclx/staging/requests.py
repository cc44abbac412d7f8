"""Request classes of `pyncclx.MPI`, whose calls for lists accept staged requests.

Staged nonblocking calls need no class of their own; see `completion.copy_back_on_completion`. Staged persistent
requests have a `StagedWork`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from .. import events
from ..requests import persistent
from ..requests.host_receive import HostReceive, Undivided
from ..requests.objects import ObjectRequests
from ..requests.wrapped import ExplainedRequest, SentToItself
from .stand_ins import StandIn

_OURS = ObjectRequests, HostReceive, SentToItself, ExplainedRequest


def _of_many(name: str) -> Any:
    """Return a class method for lists, such as `Waitall`, that accepts all requests."""
    original: Callable[..., Any] = getattr(MPI.Request, name)
    with_ours = getattr(ObjectRequests, name)  # accepts requests of messages with device arrays too

    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        if _OF_HOST_ARRAYS.issuperset(map(type, requests)):
            return original(requests, *args, **kwargs)
        ours = any(isinstance(request, _OURS) for request in requests)
        return (with_ours if ours else original)(requests, *args, **kwargs)

    method.__name__, method.__doc__ = name, original.__doc__
    return classmethod(method)


def _copying(new: Callable[..., MPI.Request]) -> Any:
    """Return a constructor that copies a request, or returns an `Undivided` itself."""

    def copy(cls: type, request: MPI.Request | None = None) -> MPI.Request:
        """Return a copy of a request."""
        is_undivided = isinstance(request, Undivided) and isinstance(request, vars(cls).get("like", ()))
        return request if is_undivided else new(cls, request)  # type: ignore[return-value]

    return copy


class Request(StandIn, MPI.Request):
    """An `mpi4py.MPI.Request` whose calls for many requests accept staged ones."""

    like = MPI.Request

    __new__ = _copying(MPI.Request.__new__)

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return the request of a handle; for a persistent device request, that object."""
        known = persistent.BY_HANDLE.get(handle)
        if known and (known.is_known_by(handle) if isinstance(known, persistent.Prequest) else known.handle == handle):
            return known
        return super().fromhandle(handle)

    def Free(self) -> None:
        """Free the request, like mpi4py's `Free`."""
        # `MPI.Request.Free(request)` may get a request of a device array, or one of mpi4py's.
        if Request not in type(self).__mro__:
            return self.Free()
        return super().Free()


for _kind in ("all", "any", "some"):
    for _call in ("Wait", "wait", "Test", "test", "Get_status_", "get_status_"):
        setattr(Request, _call + _kind, _of_many(_call + _kind))

_OF_HOST_ARRAYS = {MPI.Request, Request}

REQUEST_NULL = Request(MPI.REQUEST_NULL)
Request.constants = {"REQUEST_NULL": REQUEST_NULL}


class Prequest(persistent.EmitsStarts, MPI.Prequest, Request):
    """An `mpi4py.MPI.Prequest` whose `Startall` accepts staged requests too."""

    like = MPI.Prequest
    __new__ = _copying(MPI.Prequest.__new__)

    def Start(self) -> None:
        """Call `prepare`, and start the operation, like mpi4py's `Start`."""
        # `MPI.Prequest.Start(request)` may get a request of another class; see `Free`.
        if Prequest not in type(self).__mro__:
            return self.Start()
        began = persistent.begin_starts([self]) if events.listeners else None
        self.prepare()
        super().Start()
        if began is not None:
            persistent.emit_starts([self], began)
        return None

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Start several requests, which may include staged ones."""
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
