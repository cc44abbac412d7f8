"""Matched messages (`Mprobe`); kernels receive them if possible, otherwise MPI."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..arrays import places
from ..arrays.places import on_host
from ..errors import NotSupported
from ..requests.status import check_status
from ..staging import stage
from ..staging.stand_ins import StandIn
from . import calls
from .base import MessageBase
from .host import receive as host_receive
from .probe import ProbedMessage, ireceive_object, receive_object

_ON_HOST = object()
# Messages of pyncclx's communicators, by handle: a program may receive a message by a copy of its handle.
_BY_HANDLE: weakref.WeakValueDictionary[int, Message] = weakref.WeakValueDictionary()


class Message(StandIn, MPI.Message):
    """An `mpi4py.MPI.Message` that can be received into device arrays.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(4), comm.Alloc(4)
    >>> request = comm.Isend(x, 0)
    >>> comm.Mprobe().Recv(y)
    >>> request.Wait()
    True
    """

    like = MPI.Message
    _comm: MessageBase | None = None
    # Set if the probe has read the envelope.
    _probed: ProbedMessage | None = None

    def __new__(cls, message: MPI.Message | None = None, *_: Any) -> Message:
        """Create the message. mpi4py's `__new__` takes no other argument."""
        return super().__new__(cls, message)

    def __init__(
        self, message: MPI.Message | None = None, comm: MessageBase | None = None, probed: ProbedMessage | None = None
    ) -> None:
        # Device arrays need an endpoint, which mpi4py's communicators do not have.
        self._comm = comm if hasattr(type(comm), "endpoint") else None
        self._probed = probed
        copied = _BY_HANDLE.get(self.handle) if comm is None else None
        if copied is not None and copied == self:
            self._comm, self._probed = copied._comm, copied._probed
        if self._comm is not None:
            _BY_HANDLE[self.handle] = self

    def recv(self, status: MPI.Status | None = None) -> Any:
        """Receive the message and return its Python object, like mpi4py's `recv`."""
        if self._probed is None:
            return _reusable(self, super()).recv(status)
        if status is not None:
            check_status(status)
        return receive_object(self._taken(self._probed), status)

    def irecv(self) -> MPI.Request:
        """Start to receive the message as a Python object, like mpi4py's `irecv`."""
        if self._probed is None:
            return cast(MPI.Request, _reusable(self, super()).irecv())
        return ireceive_object(self._taken(self._probed))

    def _taken(self, probed: ProbedMessage) -> ProbedMessage:
        """Return `probed` with this handle's message, and free this handle."""
        probed = probed._replace(message=MPI.Message(self))
        self.free()
        return probed

    @classmethod
    def Probe(cls, comm: Any, *args: Any, **kwargs: Any) -> Message:
        """Wait for a message and match it, like mpi4py's `Probe`."""
        if hasattr(type(comm), "endpoint"):
            return cast(Message, comm.Mprobe(*args, **kwargs))
        return cls(super().Probe(comm, *args, **kwargs))

    @classmethod
    def Iprobe(cls, comm: Any, *args: Any, **kwargs: Any) -> Message | None:
        """Match a message if one has arrived; else return None, like mpi4py's `Iprobe`."""
        if hasattr(type(comm), "endpoint"):
            return cast("Message | None", comm.Improbe(*args, **kwargs))
        message = super().Iprobe(comm, *args, **kwargs)
        return None if message is None else cls(message)

    def _received(self, operation: str, call: Callable[..., Any], buf: Any, *status: MPI.Status | None) -> Any:
        """Receive into a device array; return `_ON_HOST` for a host array.

        Without a kernel, `call` receives into a host copy.
        """
        comm = cast("MessageBase", self._comm)
        if on_host(buf):
            return _ON_HOST
        try:
            return calls.receive_matched(comm, operation, self, self._probed, buf, *status)
        except NotSupported:
            if not comm.staging:
                raise
        return _ON_HOST if places.host_arrays() else stage.stage(comm, operation, call, (buf, *status), {})

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive the message into a host or device array, like mpi4py's `Recv`."""
        own: Callable[..., None]
        began = events.now() if events.listeners else None
        comm, probed, own = self._comm, self._probed, _reusable(self, super()).Recv
        if comm is None or self == MPI.MESSAGE_NO_PROC:
            return own(buf, status)
        if status is not None:
            check_status(status)

        def receive(buf: Any, status: MPI.Status | None) -> None:
            try:
                own(buf, status)
            finally:  # also for a message that is too long
                if probed is not None:
                    probed.end(status)

        if self._received("Recv", receive, buf, status) is _ON_HOST:
            host_receive.receive(comm, receive, (buf,), buf, status)
            if began is not None:
                events.emit("Recv", events.HOST, events.longest_nbytes([buf]), began, comm=comm)
        return None

    def Irecv(self, buf: Any) -> MPI.Request:
        """Start to receive the message into a host or device array, like mpi4py's `Irecv`."""
        receive: Callable[[Any], MPI.Request]
        began = events.now() if events.listeners else None
        comm, probed, receive = self._comm, self._probed, _reusable(self, super()).Irecv
        if comm is None or self == MPI.MESSAGE_NO_PROC:
            return receive(buf)
        request = self._received("Irecv", receive, buf)
        if request is _ON_HOST:
            request = host_receive.ireceive(comm, receive, buf, probed)
            if began is not None:
                events.emit("Irecv", events.HOST, events.longest_nbytes([buf]), began, comm=comm)
        return cast(MPI.Request, request)


MESSAGE_NULL = Message(MPI.MESSAGE_NULL)
MESSAGE_NO_PROC = Message(MPI.MESSAGE_NO_PROC)
Message.constants = {"MESSAGE_NULL": MESSAGE_NULL, "MESSAGE_NO_PROC": MESSAGE_NO_PROC}


def _reusable(message: Message, other: Any) -> Any:
    """Return `other`, or mpi4py's constant for MESSAGE_NO_PROC.

    A receive frees the handle of its message; MESSAGE_NO_PROC must stay valid.
    """
    return MPI.MESSAGE_NO_PROC if message is MESSAGE_NO_PROC else other
