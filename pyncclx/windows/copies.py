"""Copies to and from a rank's memory: Put and Get, also with requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

from .. import events
from ..arrays.specs import arrays_of
from ..derived.buffers import TypedBuffer, buffer_of, move, without_gaps
from ..launch.keys import MAKERS, VALUES, NoKey
from ..recording.layout import ACCESS
from ..team.plans import Producer, producers_of
from ..team.streams import is_of_current
from .accesses import Accesses, Enqueued, on_device
from .reach import parse

_Method = TypeVar("_Method", bound=Callable[..., Any])


class CachedCopy(NamedTuple):
    """A cached copy. It keeps no array alive."""

    to: int
    source: int
    nbytes: int
    producers: tuple[Producer, ...]
    of_current: bool
    facts: bytes | None  # entry for the flight recorder; None if calls are not recorded


def with_cached_copies(method: _Method) -> _Method:
    """Decorate a method like `on_device`, and cache its copies.

    If an equal call is cached, its copy is enqueued again without checking the arguments.
    """
    name, general = method.__name__, on_device(method)
    has_request = name.startswith("R")

    @functools.wraps(method)
    def either(self: Copies, origin: Any, target_rank: int, target: Any = None) -> Any:
        reach = self._state.reach
        if reach is not None and reach.copies is not None and not events.listeners:
            copy = reach.copies.get(_key_of(name, origin, target_rank, target))
            if copy is not None:
                enqueued = self._copy_again(copy, origin)
                return enqueued.request() if has_request else None
        return general(self, origin, target_rank, target)

    return cast(_Method, either)


def _key_of(operation: str, origin: Any, rank: Any, target: Any) -> Hashable:
    """Return the cache key of a copy; None if an argument has no key."""
    if type(rank) is not int:
        return None
    try:
        return operation, MAKERS[type(origin)](origin), rank, VALUES[type(target)](target)
    except NoKey:
        return None


class Copies(Accesses):
    """The methods of `pyncclx.Win` that copy data."""

    @with_cached_copies
    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy an array into a rank's memory, like mpi4py's Put.

        Copies of device memory are enqueued on the current stream.

        Parameters
        ----------
        origin : array or buffer specification
            A device array if the target is device memory; a derived datatype selects parts of it. Subsequent work on
            the current stream may change it; other code must wait for the end of the epoch or a flush.
        target_rank : int
            With MPI.PROC_NULL nothing is copied.
        target : int or list, optional
            Displacement, in units of the window's disp_unit, or ``[disp, count, datatype]``. The last items may be
            omitted; the defaults are 0, and origin's count and datatype. Kernels pack and unpack derived datatypes.

        Raises
        ------
        TypeError, ValueError, BufferError
            Raised by mpi4py for the same arguments.
        MPI.Exception
            If the target's elements do not exist (class ERR_RANK, ERR_COUNT, ERR_DISP or ERR_RMA_RANGE), if origin has
            another length (ERR_TRUNCATE), or if the communicator has been freed (ERR_WIN).
        NotSupported
            If array and target are not both on the device. Also in a captured graph, if both have derived datatypes.
        """
        self._copy("Put", origin, target_rank, target)

    @with_cached_copies
    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy from a rank's memory into an array, like mpi4py's Get.

        Copies of device memory are enqueued on the current stream. Parameters and exceptions are those of `Put`; the
        call writes to `origin`.
        """
        self._copy("Get", origin, target_rank, target)

    @with_cached_copies
    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """Start a `Put` whose request completes when `origin` may be reused.

        It works like mpi4py's Rput.
        """
        return self._copy("Rput", origin, target_rank, target).request()

    @with_cached_copies
    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """Start a `Get` whose request completes when `origin` has the data.

        It works like mpi4py's Rget.
        """
        return self._copy("Rget", origin, target_rank, target).request()

    def _copy(self, operation: str, origin: Any, rank: int, target: Any) -> Enqueued:
        reach, spec, gets = self._reach_now(), parse(operation, target), operation in ("Get", "Rget")
        device = reach.device
        if rank == MPI.PROC_NULL and origin is None:
            return Enqueued(reach, device.current_stream(), ())
        here = buffer_of(origin, f"{operation}: origin", writable=gets, device=device)
        stream = reach.stream_for((here,))
        if rank == MPI.PROC_NULL:
            return Enqueued(reach, stream, (here,))
        there = without_gaps(reach.find(operation, rank, spec, here))
        here = without_gaps(here)
        to, source = (here, there) if gets else (there, here)
        are_typed = isinstance(to, TypedBuffer), isinstance(source, TypedBuffer)
        if all(are_typed):
            reach.check_allocates(operation, stream)
        move(reach, to, source, stream)
        key = None if any(are_typed) or reach.copies is None else _key_of(operation, origin, rank, target)
        if key is not None and reach.copies is not None:
            facts = self._facts(operation, origin, rank)
            origins = producers_of((here,)), is_of_current((here,))
            reach.copies[key] = CachedCopy(to.address, source.address, here.nbytes, *origins, facts)
        return Enqueued(reach, stream, (to, source))

    def _facts(self, operation: str, origin: Any, rank: int) -> bytes | None:
        """Return a copy's entry for the flight recorder; None if calls are not recorded."""
        calls, nbytes = self._calls(), getattr(origin, "nbytes", 0)
        return None if calls is None else calls.facts_of_one(operation, ACCESS, peer=rank, nbytes=nbytes)

    def _copy_again(self, copy: CachedCopy, origin: Any) -> Enqueued:
        """Enqueue a cached copy from or to this call's array."""
        if copy.facts is not None and self._state.recording is not None:
            self._state.recording.ring.add_packed(0, copy.facts)
        reach = self._reach_now()
        stream = reach.stream_for(copy.producers, copy.of_current)
        reach.device.copy(copy.to, copy.source, copy.nbytes, stream)
        return Enqueued(reach, stream, arrays_of(origin))
