"""Handles of this library's requests, for mpi4py's own calls."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ..system.process import held
from . import late
from .status import fill_empty
from .work import Work, finish

_address_of = MPI._addressof
# A handle is a pointer (Open MPI) or an int (MPICH). Copying one with ctypes.memmove takes six times as long.
_at = (ctypes.c_uint32 if MPI._sizeof(MPI.Request) == ctypes.sizeof(ctypes.c_uint32) else ctypes.c_uint64).from_address
_NULL = _at(_address_of(MPI.REQUEST_NULL)).value


class Shown:
    """An MPI generalized request that represents a request of this library.

    MPI considers it complete from the beginning; when MPI queries its status, the query callback finishes the work.
    This library's own calls complete requests without MPI, and the generalized request is then reused for another
    request. But a persistent request keeps one generalized request, because programs may use a copy of its handle for
    several starts.

    Attributes
    ----------
    work : Work or None
        The work of the request that uses it, while that request is active.
    is_freed : bool
        Whether MPI has freed it.
    request : weak reference or None
        The persistent request that uses it.
    """

    __slots__ = ("__weakref__", "_generalized", "handle", "is_freed", "request", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        self.is_freed, self.request = False, cast("ref[MPI.Request] | None", None)
        self._generalized = MPI.Grequest.Start(_query, late.callback(_free(self)), _cancel, (self,))
        self._generalized.Complete()
        self.handle = handle_of(self._generalized)
        _ALL.add(self)


_ALL = WeakSet[Shown]()
_HIDDEN: list[Shown] = held([])
#: Called with `Work.caller` and the error that the work raised in one of mpi4py's own calls.
ON_ERROR: list[Callable[[Any, Exception], None]] = held([])


def show(requests: Iterable[Any]) -> None:
    """Set the handles of active requests to generalized requests, for mpi4py's calls."""
    for request in requests:
        work = request._work
        if work.active:
            shown = work.shown
            while shown is None or shown.is_freed:
                try:
                    shown = _HIDDEN.pop()
                except IndexError:
                    shown = Shown()
                shown.request = ref(request) if work.is_persistent else None
            shown.work, work.shown = work, shown
            _at(_address_of(request)).value = shown.handle


def hide(requests: Iterable[Any], *, for_good: bool = False) -> None:
    """Set the handles of requests whose work has ended to null.

    For MPI, null requests are the same as inactive requests. With `for_good`, a persistent request releases its
    generalized request for reuse.
    """
    for request in requests:
        work = request._work
        shown = work.shown
        if shown is not None and not work.active:
            _at(_address_of(request)).value = _NULL
            work.is_asked, shown.work = False, None
            if for_good or not work.is_persistent:
                work.shown = None
                _HIDDEN.append(shown)


def handle_of(request: MPI.Request) -> int:
    """Return a request's MPI handle as a number."""
    return _at(_address_of(request)).value


def set_handle(request: MPI.Request, handle: int) -> None:
    """Set a request's MPI handle."""
    _at(_address_of(request)).value = handle


def _query(status: MPI.Status, shown: Shown) -> None:
    """Finish the work and fill in the status: MPI's query callback.

    MPI calls it when the program waits for the request or queries its status by mpi4py's own methods.
    """
    work = shown.work
    if work is None or (late.INTERRUPTED and late.is_interrupted(sys._getframe(1))):
        fill_empty(status)
    else:
        work.is_asked = True
        # Read the caller first, because a work drops its communicator when it ends.
        caller = work.caller if ON_ERROR else None
        try:
            finish(work)
        except BaseException as error:
            own = own_error(error)
            if own is None:
                late.keep(error, sys._getframe(1))
            else:
                work.asked_error = own
                for call in ON_ERROR:
                    call(caller, own)
                raise
        work.fill(status)


def _free(shown: Shown) -> Iterator[late.Last]:
    """Clean up when MPI frees the generalized request: MPI's free callback.

    If the program has completed it through a copy of the handle, this library's request still holds the freed handle.
    A persistent request then gets a null handle.
    """
    shown.is_freed, shown.work, work = True, None, shown.work
    if work is not None:
        work.is_asked, work.asked_error = False, None
    if late.INTERRUPTED and late.is_interrupted(sys._getframe(1)) and not any(map(_is_under_way, list(_ALL))):
        # This is the last callback of the MPI call, so C code can set the exception now.
        yield late.taken()
    request = None if shown.request is None else shown.request()
    yield late.NOTHING if request is None else late.behind_the_call(partial(_make_null, request, handle_of(request)))


def _make_null(request: MPI.Request, handle: int) -> None:
    """Set a request's handle to null if it is still `handle`, which MPI has freed."""
    if handle_of(request) == handle:
        set_handle(request, _NULL)


def _cancel(_: bool, shown: Shown) -> None:
    """Cancel the work: MPI's callback for mpi4py's own `Cancel`."""
    if shown.work is not None:
        shown.work.cancel()


def _is_under_way(shown: Shown) -> bool:
    return shown.work is not None and shown.work.active
