"""What mpi4py's own calls, which know nothing but handles, find in the requests of this library."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

from mpi4py import MPI

from ..system.process import held
from . import late
from .status import fill_empty
from .work import Work, finish

_address_of, _copy, _NBYTES = MPI._addressof, ctypes.memmove, MPI._sizeof(MPI.Request)
_NULL = MPI._addressof(MPI.REQUEST_NULL)


class Shown:
    """A generalized request of MPI's, complete from the beginning: MPI finishes the work where it asks for the status.

    Calls of this library complete requests without MPI, so it outlives them. A persistent request keeps its own:
    programs may keep copies of the handle from one start to the next. Other requests take over each other's.

    Attributes
    ----------
    work : Work or None
        Of the request that it is shown for, while that is active.
    is_freed : bool
        Whether MPI has freed it.
    request : weak reference or None
        To the persistent request that shows it.
    """

    __slots__ = ("__weakref__", "_generalized", "address", "is_freed", "request", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        self.is_freed, self.request = False, cast("ref[MPI.Request] | None", None)
        self._generalized = MPI.Grequest.Start(_query, late.callback(_free(self)), None, (self,))
        self._generalized.Complete()
        self.address = _address_of(self._generalized)
        _ALL.add(self)


_ALL = WeakSet[Shown]()
_HIDDEN: list[Shown] = held([])


def show(requests: Iterable[Any]) -> None:
    """Show mpi4py those of some requests whose work is under way, and that it does not see."""
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
            _copy(_address_of(request), shown.address, _NBYTES)


def hide(requests: Iterable[Any], *, for_good: bool = False) -> None:
    """Show mpi4py null requests, which are for MPI inactive ones, too, where the work is no longer under way.

    With `for_good` persistent requests leave what they showed to others.
    """
    for request in requests:
        work = request._work
        shown = work.shown
        if shown is not None and not work.active:
            _copy(_address_of(request), _NULL, _NBYTES)
            work.is_asked, shown.work = False, None
            if for_good or not work.is_persistent:
                work.shown = None
                _HIDDEN.append(shown)


def handle_of(request: MPI.Request) -> bytes:
    """Return the memory of a request's handle."""
    return ctypes.string_at(_address_of(request), _NBYTES)


def set_handle(request: MPI.Request, handle: bytes) -> None:
    """Set the memory of a request's handle."""
    _copy(_address_of(request), handle, _NBYTES)


def _query(status: MPI.Status, shown: Shown) -> None:
    """MPI calls this when the program waits for the request, or asks for its status, by mpi4py's own methods."""
    work = shown.work
    if work is None or (late.INTERRUPTED and late.is_interrupted(sys._getframe(1))):
        fill_empty(status)
    else:
        work.is_asked = True
        try:
            finish(work)
        except Exception as error:
            work.asked_error = error
            raise
        except BaseException as error:  # of a signal's handler
            late.keep(error, sys._getframe(1))
        work.fill(status)


def _free(shown: Shown) -> Iterator[late.Last]:
    """Do what is to be done when MPI frees the request, to which one completed by a copy of its handle still refers."""
    shown.is_freed, shown.work, work = True, None, shown.work
    if work is not None:
        work.is_asked, work.asked_error = False, None
    if late.INTERRUPTED and late.is_interrupted(sys._getframe(1)) and not any(map(_is_under_way, list(_ALL))):
        yield late.taken()  # MPI's call has no other callback
    request = None if shown.request is None else shown.request()
    yield late.NOTHING if request is None else late.behind_the_call(partial(_make_null, request, handle_of(request)))


def _make_null(request: MPI.Request, handle: bytes) -> None:
    """Make a request null for mpi4py whose handle MPI has freed with a copy of it, unless it has another one by now."""
    if handle_of(request) == handle:
        set_handle(request, handle_of(MPI.REQUEST_NULL))


def _is_under_way(shown: Shown) -> bool:
    return shown.work is not None and shown.work.active
