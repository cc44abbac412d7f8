"""Messages of Python objects (`send`, `recv`): kernels move their device arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from ..failures.policy import explained_request, explains_failures
from ..messages.base import MessageBase
from ..messages.probe import HOLDING
from ..messages.progress.pending_sends import going_on, note_buffered
from ..objects import operands
from ..objects.broadcast import in_step
from ..objects.messages import Exchange, seal
from ..objects.pickled import is_plain, take_apart
from ..staging.completion import StagedCall, abandon
from .probes import of_any

_sendrecv, _recv = MPI.Comm.sendrecv, MPI.Comm.recv


def _sealed(comm: MessageBase, obj: Any, dest: int, tag: int = 0) -> Any:
    """Return the object that mpi4py pickles in place of `obj` for one receiver."""
    if is_plain(obj) or dest == MPI.PROC_NULL:
        return obj
    contents = take_apart(obj)
    return obj if contents is None else seal(comm, contents, dest, tag)


def _begun(comm: MessageBase, begin: Callable[..., MPI.Request], message: Any, dest: int, tag: int) -> MPI.Request:
    """Begin to send a message with mpi4py, and return the request.

    If an interrupt loses the request, the request and its pickle are kept until MPI has sent the message.
    """
    begun: list[MPI.Request] = []
    try:
        with Exchange(comm, (message,)):
            # The list holds the request before Python runs signal handlers.
            begun.extend(map(begin, (message,), (dest,), (tag,)))
            return going_on(explained_request(comm, begun[0]))
    except BaseException:
        for request in begun:
            abandon(StagedCall(request, ()))
        raise


class ObjectMessages(MessageBase):
    """Messages of Python objects: mpi4py's methods, also for device arrays.

    The data of device arrays is not pickled: kernels move it. A receiver gets new arrays of the same library, type,
    shape and order, which the current stream fills. A copy is sent, so subsequent work on the sender's stream may write
    to its arrays. mpi4py moves objects without device arrays. If the program has replaced the functions of
    `MPI.pickle`, mpi4py moves all objects.
    """

    @of_any
    @explains_failures
    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object to a rank; kernels move the data of its device arrays.

        Parameters
        ----------
        obj : object
            Anything that can be pickled, with any number of device arrays in it.
        dest, tag : int

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> request = comm.isend({"weights": comm.Alloc(4), "step": 7}, 0)
        >>> comm.recv()["step"], request.wait()
        (7, None)
        """
        message = _sealed(self, obj, dest, tag)
        with Exchange(self, (message,)):
            super().send(message, dest, tag)

    @of_any
    @explains_failures
    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object, and return when a receive has matched it; see `send`."""
        message = _sealed(self, obj, dest, tag)
        with Exchange(self, (message,)):
            super().ssend(message, dest, tag)

    @of_any
    @explains_failures
    def isend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a Python object, and return a request; see `send`.

        The program may change the object and its device arrays as soon as the call returns.
        """
        return _begun(self, super().isend, _sealed(self, obj, dest, tag), dest, tag)

    @of_any
    @explains_failures
    def issend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a Python object; its request completes when a receive matches it."""
        return _begun(self, super().issend, _sealed(self, obj, dest, tag), dest, tag)

    @of_any
    @explains_failures
    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object through mpi4py's buffer."""
        super().bsend(obj, dest, tag)
        note_buffered()

    @of_any
    @explains_failures
    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a Python object through mpi4py's buffer; return a request."""
        return going_on(explained_request(self, super().ibsend(obj, dest, tag)))

    @explains_failures
    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Receive a Python object; the stream, not the host, waits for its device arrays.

        Parameters
        ----------
        buf : buffer, optional
            Memory for the pickle.
        source, tag : int
        status : MPI.Status, optional
        """
        if not isinstance(self, MessageBase):  # MPI.Comm.recv(comm), where comm is mpi4py's
            return type(self).recv(self, buf, source, tag, status)
        if tag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        with Exchange(self):
            return super().recv(buf, source, tag, status) if HOLDING else _recv(self, buf, source, tag, status)

    @explains_failures
    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Send a Python object while receiving another; see `send` and `recv`."""
        if not isinstance(self, MessageBase):  # MPI.Comm.sendrecv(comm, ...), where comm is mpi4py's
            return type(self).sendrecv(self, sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        if recvtag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        message = _sealed(self, sendobj, dest, sendtag)
        with Exchange(self, (message,)):
            # Check source and tag first: mpi4py would reject them only after it has sent the message.
            if message is not sendobj:
                self.endpoint.check_receive("sendrecv", source, recvtag)
                return self._sendrecv(message, (dest, sendtag), (recvbuf, source, recvtag, status))
            if HOLDING:
                return super().sendrecv(message, dest, sendtag, recvbuf, source, recvtag, status)
            return _sendrecv(self, message, dest, sendtag, recvbuf, source, recvtag, status)

    @of_any
    @in_step
    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce all ranks' objects like mpi4py's `allreduce`, also on intercommunicators."""
        return operands.carefully(self, partial(super().allreduce, sendobj), op)

    @of_any
    @in_step
    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """Reduce all ranks' objects like mpi4py's `reduce`, also on intercommunicators."""
        return operands.carefully(self, partial(super().reduce, sendobj, root=root), op)

    def _sendrecv(self, message: Any, sending: tuple[int, int], receiving: tuple[Any, ...]) -> Any:
        """Send a message while receiving an object, even if unpickling the object raises.

        The message's memory is kept until MPI has sent it. mpi4py's `sendrecv` frees it too early, so the receiver may
        get wrong data.
        """
        request = super().isend(message, *sending)
        try:
            received = super().recv(*receiving) if HOLDING else _recv(self, *receiving)
            request.wait()
        except BaseException:
            self.endpoint.context.receives.pending_sends.keep(request, message)  # the request keeps the pickle
            raise
        return received
