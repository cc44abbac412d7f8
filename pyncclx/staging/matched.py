"""Messages that a probe has matched: received by kernels if they can, else by MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from .. import arrays
from ..buffers import on_host
from ..errors import NotSupported
from ..messages import calls, host_receive
from . import stage
from .requests import LikeMpi4py

if TYPE_CHECKING:
    from ..base import Base


class Message(MPI.Message, metaclass=LikeMpi4py):
    """A matched message of one of our communicators; an `mpi4py.MPI.Message`."""

    like = MPI.Message

    def __new__(cls, message: MPI.Message | None = None, comm: Base | None = None) -> Message:
        """As mpi4py's, which takes the message alone."""
        return super().__new__(cls, message)

    def __init__(self, message: MPI.Message | None = None, comm: Base | None = None) -> None:
        # An mpi4py communicator sends no device arrays.
        self._comm = comm if hasattr(type(comm), "endpoint") else None

    def __reduce__(self) -> str | tuple[Any, ...]:
        super().__reduce__()  # raises for all but the constants
        name = "MESSAGE_NULL" if self == MESSAGE_NULL else "MESSAGE_NO_PROC"
        return (_named, (name,)) if self is _CONSTANTS[name] else (_copy_of, (type(self), name))

    def free(self) -> None:
        """As mpi4py's, which does nothing to its constants."""
        if self is not MESSAGE_NO_PROC:
            super().free()

    def recv(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        return _constant(self, super()).recv(status)

    def irecv(self) -> MPI.Request:
        """As mpi4py's."""
        return cast(MPI.Request, _constant(self, super()).irecv())

    @classmethod
    def fromhandle(cls, handle: int) -> Message:
        """As mpi4py's."""
        return cls(super().fromhandle(handle))

    @classmethod
    def Probe(cls, comm: Any, *args: Any, **kwargs: Any) -> Message:
        """As mpi4py's."""
        return cls(super().Probe(comm, *args, **kwargs), comm)

    @classmethod
    def Iprobe(cls, comm: Any, *args: Any, **kwargs: Any) -> Message | None:
        """As mpi4py's."""
        message = super().Iprobe(comm, *args, **kwargs)
        return None if message is None else cls(message, comm)

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """As mpi4py's; buf may be a device array."""
        receive: Callable[..., None]
        comm, receive = self._comm, _constant(self, super()).Recv
        if comm is None or self == MPI.MESSAGE_NO_PROC:
            receive(buf, status)
            return None
        if on_host(buf):
            return host_receive.receive(comm, lambda known: receive(buf, known), buf, status)
        try:
            return calls.receive_matched(comm, self, buf, status)
        except NotSupported:
            if not comm.staging:
                raise
        if arrays.host_arrays():
            return host_receive.receive(comm, lambda known: receive(buf, known), buf, status)
        return cast(None, stage.stage(comm, "Recv", receive, (buf, status), {}))

    def Irecv(self, buf: Any) -> MPI.Request:
        """As mpi4py's; buf may be a device array."""
        receive: Callable[[Any], MPI.Request]
        comm, receive = self._comm, _constant(self, super()).Irecv
        if comm is None or self == MPI.MESSAGE_NO_PROC:
            return receive(buf)
        if on_host(buf):
            return host_receive.ireceive(comm, receive(buf), buf)
        try:
            return calls.ireceive_matched(comm, self, buf)
        except NotSupported:
            if not comm.staging:
                raise
        if arrays.host_arrays():
            return host_receive.ireceive(comm, receive(buf), buf)
        return cast(MPI.Request, stage.stage(comm, "Irecv", receive, (buf,), {}))


MESSAGE_NULL = Message(MPI.MESSAGE_NULL)
MESSAGE_NO_PROC = Message(MPI.MESSAGE_NO_PROC)
_CONSTANTS = {"MESSAGE_NULL": MESSAGE_NULL, "MESSAGE_NO_PROC": MESSAGE_NO_PROC}


def _constant(message: Message, other: Any) -> Any:
    """What a method of `message` works on: receiving uses a message up, but not the constant."""
    return MPI.MESSAGE_NO_PROC if message is MESSAGE_NO_PROC else other


def _named(name: str) -> Message:
    return _CONSTANTS[name]


def _copy_of(cls: type[Message], name: str) -> Message:
    return cls.__new__(cls, _CONSTANTS[name])
