"""mpi4py's buffer operations, which copy device arrays to host memory and back: what kernels leave to MPI."""

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


def _stages_all_of(owner: type[MPI.Comm]) -> Callable[[_Class], _Class]:
    """Give a class a staged form of each buffer operation that `owner` defines."""

    def add(cls: _Class) -> _Class:
        for operation in OPERATIONS:
            if operation in vars(owner):
                setattr(cls, operation, _staged(operation, getattr(owner, operation)))
        return cls

    return add


def _same(result: Any) -> Any:
    return result


def _staged(operation: str, original: _Method) -> _Method:
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


@_stages_all_of(MPI.Comm)
class StagedMessages(Base):
    """Operations of all communicators: messages, and the collectives that intercommunicators have too."""


@_stages_all_of(MPI.Intracomm)
class StagedCollectives(Base):
    """Operations that only intracommunicators have: Scan and Exscan."""


@_stages_all_of(MPI.Topocomm)
class StagedNeighbors(Base):
    """Operations that only communicators with a topology have: the neighbourhood collectives."""
