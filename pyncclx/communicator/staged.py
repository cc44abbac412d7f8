"""mpi4py's buffer operations on device arrays, through copies in host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from mpi4py import MPI

from .. import events
from ..arrays import places
from ..errors import NotSupported
from ..failures.policy import explains_failures, raise_explained
from ..messages.progress.pending_sends import going_on, note_buffered
from ..recording.facts import is_on, records_all
from ..staging import stage
from ..staging.arguments import (
    OPERATIONS,
    GivenCall,
    is_message,
    is_nonblocking,
    is_persistent,
    recorded_by_mpi,
)
from ..staging.requests import Prequest
from ..system.mpi_library import is_cuda_aware
from ..team.base import Base
from .host_first import RECEIVES, host_first, receive_by_mpi

_Class = TypeVar("_Class", bound=type)
_Method = Callable[..., Any]


def _stages_all_of(owner: type[MPI.Comm]) -> Callable[[_Class], _Class]:
    """Return a class decorator that adds a staged form of each operation of `owner`."""

    def add(cls: _Class) -> _Class:
        for operation in OPERATIONS:
            if operation in vars(owner):
                setattr(cls, operation, _staged(operation, getattr(owner, operation)))
        return cls

    return add


def _staged(operation: str, original: _Method) -> _Method:
    # Blocking collectives are already recorded by the caller.
    nonblocking = is_nonblocking(operation)
    receives = operation in RECEIVES and not nonblocking
    buffered = operation in ("Bsend", "Bsend_init")
    is_blocking_collective = not (is_message(operation) or nonblocking or is_persistent(operation))

    @functools.wraps(original)
    def method(self: Base, *args: Any, **kwargs: Any) -> Any:
        if buffered:
            note_buffered()
        began = events.begin(operation, self) if events.listeners else None
        records = not is_blocking_collective and is_on() and (places.host_arrays() or records_all())
        # On the host device every array is in host memory, so MPI's call needs no copies.
        given = GivenCall(operation, args, kwargs)
        if not places.host_arrays() and given.device_buffers(OPERATIONS[operation]):
            if self.staging:
                call = _checking(self, operation, original) if receives else functools.partial(original, self)
                staged = stage.stage(self, operation, call, args, kwargs)
                return going_on(staged) if nonblocking else staged
            if is_cuda_aware() is False:
                raise _not_by_mpi(given)
        try:
            with recorded_by_mpi(self, given) if records else nullcontext():
                result = original(self, *args, **kwargs)
        except MPI.Exception as error:
            raise_explained(self, error, operation)
        if is_persistent(operation):
            result = Prequest(result)
            result.emits(operation, events.HOST, given.nbytes)
        elif began is not None:
            events.emit(operation, events.HOST, given.nbytes, began, comm=self)
        # The result of a receive is a copy of a request; the progress of the original is already followed.
        return going_on(result) if nonblocking and operation not in RECEIVES else result

    return host_first(operation, method)


def _not_by_mpi(given: GivenCall) -> NotSupported:
    """Return the error for a call on device arrays that kernels and MPI cannot run."""
    on_host = [each.name for each in OPERATIONS[given.operation] if places.where(given.value(each)) == "host"]
    reason = f"{on_host[0]} is in host memory" if on_host else "no kernel does this"
    return NotSupported(
        f"{given.operation}: {reason}, and the MPI library does not take device arrays. Pass host arrays, or set "
        "comm.staging = True (or use `from pyncclx import MPI`) to send them through host memory"
    )


def _checking(comm: Base, operation: str, original: _Method) -> _Method:
    """Return mpi4py's receive into a host copy, which also accepts envelopes."""
    call = functools.partial(original, comm)
    functools.update_wrapper(call, original)

    def receive(*args: Any, **kwargs: Any) -> Any:
        return receive_by_mpi(comm, operation, call, args, kwargs)

    return receive


@_stages_all_of(MPI.Comm)
class StagedMessages(Base):
    """Messages and collectives of all communicators, intercommunicators included."""

    Barrier = explains_failures(MPI.Comm.Barrier)
    barrier = explains_failures(MPI.Comm.barrier)


@_stages_all_of(MPI.Intracomm)
class StagedCollectives(Base):
    """Operations that only intracommunicators have: Scan and Exscan."""


@_stages_all_of(MPI.Topocomm)
class StagedNeighbors(Base):
    """Operations of communicators with a topology: the neighbourhood collectives."""

    neighbor_allgather = explains_failures(MPI.Topocomm.neighbor_allgather)
    neighbor_alltoall = explains_failures(MPI.Topocomm.neighbor_alltoall)
