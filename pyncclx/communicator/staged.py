"""Families of methods for all of MPI's buffer operations: what kernels leave to MPI, with device arrays staged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from ..arrays import readers
from ..errors import NotSupported
from ..staging import stage
from ..staging.operations import OPERATIONS, device_buffers, is_persistent
from ..staging.requests import Prequest
from ..system.mpi_library import is_cuda_aware
from ..team.base import Base

_Class = TypeVar("_Class", bound=type)
_Method = Callable[..., Any]


def _stages(owner: type) -> Callable[[_Class], _Class]:
    """Give a class all buffer operations of a class of mpi4py's, with device arrays staged."""

    def add(cls: _Class) -> _Class:
        for operation in OPERATIONS:
            if operation in vars(owner):
                setattr(cls, operation, _method(operation, getattr(owner, operation)))
        return cls

    return add


def _same(result: Any) -> Any:
    return result


def _method(operation: str, original: _Method) -> _Method:
    as_ours = Prequest if is_persistent(operation) else _same

    @functools.wraps(original)
    def method(self: Base, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self)
        # On the host device every array is in host memory: staging is MPI's call itself.
        if readers.host_arrays() or not device_buffers(operation, OPERATIONS[operation], args, kwargs):
            return as_ours(call(*args, **kwargs))
        if self.staging:
            return stage.stage(self, operation, call, args, kwargs)
        if is_cuda_aware() is False:
            raise NotSupported(
                f"{operation}: no kernel does this, and the MPI library does not take device arrays. Pass host arrays, "
                "or set comm.staging = True (or use `from pyncclx import MPI`) to send them through host memory"
            )
        return as_ours(call(*args, **kwargs))

    return method


class Staged(Base):
    """The base of the families whose methods are MPI's, on host copies."""


@_stages(MPI.Comm)
class StagedMessages(Staged):
    """What all communicators have: messages, and the collectives that intercommunicators have too."""


@_stages(MPI.Intracomm)
class StagedCollectives(Staged):
    """What intracommunicators have beyond that: Scan and Exscan."""


@_stages(MPI.Topocomm)
class StagedNeighbors(Staged):
    """What communicators with a topology have beyond that: the neighbourhood collectives."""
