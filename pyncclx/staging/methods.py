"""Families of methods for all of MPI's buffer operations: what kernels leave to MPI, with device arrays staged."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from ..arrays import host_arrays
from ..base import Base
from ..buffers import where
from ..errors import NotSupported
from ..mpi_library import is_cuda_aware
from .copies import Copy
from .operations import OPERATIONS, Argument, argument, device_buffers, is_nonblocking, is_persistent
from .requests import Prequest, StagedPrequest, land_on_completion

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
        if host_arrays() or not device_buffers(operation, args, kwargs):
            return as_ours(call(*args, **kwargs))
        if self.staging:
            return stage(self, operation, call, args, kwargs)
        if is_cuda_aware() is False:
            raise NotSupported(
                f"{operation}: no kernel does this, and the MPI library does not take device arrays. Pass host arrays, "
                "or set comm.staging = True (or use `from pyncclx import MPI`) to send them through host memory"
            )
        return as_ours(call(*args, **kwargs))

    return method


def stage(comm: Base, operation: str, call: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call mpi4py's method with host copies in the place of device arrays.

    Parameters
    ----------
    comm : Base
    operation : str
    call : callable
        mpi4py's method, bound to what it belongs to.
    args, kwargs
        Of the call.

    Returns
    -------
    object
        What mpi4py's method returns; a nonblocking call's request takes the result to the device when it completes.
    """
    comm.synchronize()  # kernels of this communicator may still be writing what MPI is to read
    copies, args, kwargs = _replace(comm, operation, args, kwargs)
    if is_persistent(operation):
        return StagedPrequest(call(*args, **kwargs), copies, _partitions(operation, args, kwargs))
    for copy in copies:
        copy.download()
    result = call(*args, **kwargs)
    if is_nonblocking(operation):
        return land_on_completion(result, copies)
    for copy in copies:
        copy.upload()
    return result


def _replace(
    comm: Base, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Copy], tuple[Any, ...], dict[str, Any]]:
    """The copies that a call needs, and its arguments with what stands for the device arrays."""
    copies, placed, named = [], list(args), dict(kwargs)
    reads = is_bcast_root(comm, operation, args, kwargs)
    for which in device_buffers(operation, args, kwargs):
        spec = argument(which, args, kwargs)
        whole = not isinstance(spec, (list, tuple))
        array = spec if whole else spec[0]
        copy = Copy(array, f"{operation}: {which.name}", written=which.written and not reads, whole=whole)
        replaced = copy.stand() if whole else type(spec)((copy.stand(), *spec[1:]))
        copies.append(copy)
        if which.position < len(args):
            placed[which.position] = replaced
        else:
            named[which.name] = replaced
    return copies, tuple(placed), named


def is_bcast_root(comm: Base, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this rank only reads the buffer of a broadcast."""
    if operation not in ("Bcast", "Ibcast", "Bcast_init"):
        return False
    root = argument(Argument("root", 1, False), args, kwargs) or 0
    return bool(root == MPI.ROOT if comm.is_inter else root == comm.rank)


def _partitions(operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of a partitioned operation; 0 for others."""
    if operation not in ("Psend_init", "Precv_init"):
        return 0
    return int(argument(Argument("partitions", 1, False), args, kwargs))


def falls_back(cls: _Class) -> _Class:
    """Let a communicator class stage, where it may, what the kernels of its families refuse with NotSupported.

    They refuse before anything is launched, and on all ranks alike.
    """
    for operation in OPERATIONS:
        family = next((base for base in cls.__mro__ if operation in vars(base)), None)
        if family is not None and not issubclass(family, (MPI.Comm, Staged)):
            setattr(cls, operation, _or_staged(getattr(cls, operation), family, operation))
    return cls


def _or_staged(native: _Method, family: type, operation: str) -> _Method:
    known = frozenset(inspect.signature(getattr(MPI.Intracomm, operation)).parameters)

    @functools.wraps(native)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return native(self, *args, **kwargs)
        except NotSupported:
            # An argument that only we have asks for a kernel, and no other way will do.
            if not self.staging or not known.issuperset(kwargs):
                raise
        return getattr(super(family, self), operation)(*args, **kwargs)

    return method


class Staged(Base):
    """The base of the families whose methods are MPI's, on host copies."""


@_stages(MPI.Comm)
class StagedMessages(Staged):
    """What all communicators have: messages, and the collectives that intercommunicators have too."""

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        """As mpi4py's; the message can be received into a device array."""
        return StagedMessage(super().Mprobe(source, tag, status), self)

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        """As mpi4py's; the message can be received into a device array."""
        message = super().Improbe(source, tag, status)
        return None if message is None else StagedMessage(message, self)


@_stages(MPI.Intracomm)
class StagedCollectives(Staged):
    """What intracommunicators have beyond that: Scan and Exscan."""


@_stages(MPI.Topocomm)
class StagedNeighbors(Staged):
    """What communicators with a topology have beyond that: the neighbourhood collectives."""


class StagedMessage(MPI.Message):
    """A matched message of one of our communicators."""

    def __new__(cls, message: MPI.Message | None = None, comm: Base | None = None) -> StagedMessage:
        """As mpi4py's, which takes the message alone."""
        return super().__new__(cls, message)

    def __init__(self, message: MPI.Message | None = None, comm: Base | None = None) -> None:
        self._comm = comm

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """As mpi4py's; buf may be a device array."""
        self._receive("Recv", super().Recv, buf, status)

    def Irecv(self, buf: Any) -> MPI.Request:
        """As mpi4py's; buf may be a device array."""
        return cast(MPI.Request, self._receive("Irecv", super().Irecv, buf))

    def _receive(self, operation: str, call: _Method, *args: Any) -> Any:
        on_host = host_arrays() or where(args[0]) != "device"
        if on_host or self._comm is None or not self._comm.staging:
            return call(*args)
        return stage(self._comm, operation, call, args, {})
