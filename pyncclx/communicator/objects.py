"""mpi4py's lower-case methods: Python objects whose device arrays kernels move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..messages.base import MessageBase
from ..messages.probe import HOLDING
from ..messages.progress.unsent import going_on, note_buffered
from ..objects import operands
from ..objects.broadcast import Share, open_broadcast, open_shares
from ..objects.messages import Exchange, seal, withdraw
from ..objects.opening import open_all
from ..objects.pickled import Packed, is_plain, pickled, take_apart
from ..recovery.meetings import explains_failures
from ..team.base import IntraBase
from .probes import of_any

_sendrecv, _recv = MPI.Comm.sendrecv, MPI.Comm.recv


def _sealed(comm: MessageBase, obj: Any, dest: int, tag: int = 0) -> Any:
    """Return what is pickled in place of an object for one rank."""
    if is_plain(obj) or dest == MPI.PROC_NULL:
        return obj
    contents = take_apart(obj)
    return obj if contents is None else seal(comm, contents, dest, tag)


def _listed(comm: MessageBase, items: list[Any], dests: Iterable[int]) -> list[Any]:
    """Return what is pickled in place of several objects, each for one rank.

    All objects are pickled before any is offered to its receiver. The receiver opens each one apart: if one raises,
    the others can still be declined.
    """
    contents = [None if is_plain(item) else pickled(item) for item in items]
    messages: list[Any] = []
    try:
        for item, each, dest in zip(items, contents, dests, strict=True):
            messages.append(item if each is None else seal(comm, each, dest) if each.arrays else Packed(each))
    except BaseException:
        withdraw(messages)
        raise
    return messages


class ObjectMessages(MessageBase):
    """Messages with Python objects: mpi4py's methods, and device arrays too.

    The data of device arrays is not pickled: kernels move it. A receiver gets new arrays of the same library, type,
    shape and order, which the current stream fills. A copy is sent, so later work on the sender's stream may write its
    arrays at once. mpi4py alone moves objects without device arrays, and all objects while the program has replaced
    the functions of `MPI.pickle`.
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

        The object and its device arrays may be changed at once.
        """
        message = _sealed(self, obj, dest, tag)
        with Exchange(self, (message,)):
            return going_on(super().isend(message, dest, tag))

    @of_any
    @explains_failures
    def issend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a Python object; its request completes when a receive matches it."""
        message = _sealed(self, obj, dest, tag)
        with Exchange(self, (message,)):
            return going_on(super().issend(message, dest, tag))

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
        return going_on(super().ibsend(obj, dest, tag))

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
            # mpi4py would send the message before it refuses a source or tag; then nobody could withdraw it.
            if message is not sendobj:
                self.endpoint.check_receive("sendrecv", source, recvtag)
                return self._sendrecv(message, (dest, sendtag), (recvbuf, source, recvtag, status))
            if HOLDING:
                return super().sendrecv(message, dest, sendtag, recvbuf, source, recvtag, status)
            return _sendrecv(self, message, dest, sendtag, recvbuf, source, recvtag, status)

    @of_any
    @explains_failures
    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce all ranks' objects, as mpi4py's `allreduce` (between groups, too)."""
        operands.meet_before_duplicate(self)
        return super().allreduce(sendobj, op)

    @of_any
    @explains_failures
    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """Reduce all ranks' objects, as mpi4py's `reduce` (between groups, too)."""
        operands.meet_before_duplicate(self)
        return super().reduce(sendobj, op, root)

    def _sendrecv(self, message: Any, sending: tuple[int, int], receiving: tuple[Any, ...]) -> Any:
        """Send a message while receiving an object, even if unpickling the object raises.

        The message's memory is then kept until MPI has sent it. mpi4py's `sendrecv` frees it at once, so the receiver
        may get other data.
        """
        request = super().isend(message, *sending)
        try:
            received = super().recv(*receiving) if HOLDING else _recv(self, *receiving)
            request.wait()
        except BaseException:
            self.endpoint.postbox.receives.unsent.keep(request, message)  # the request keeps the pickle
            raise
        return received


if TYPE_CHECKING:

    class _IntraBase(IntraBase, MessageBase):
        """The classes that `ObjectCollectives` is combined with."""
else:
    _IntraBase = MessageBase


class ObjectCollectives(_IntraBase):
    """Collectives of Python objects; see `ObjectMessages`."""

    @explains_failures
    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast root's object, and return a copy on every rank, also on root."""
        own = None
        if self.rank == root and not is_plain(obj) and (contents := take_apart(obj)) is not None:
            obj, own = Share.of(self, contents, "bcast")
        result = super().bcast(obj, root)
        return open_broadcast(self, result, own, root) if type(result) is Share else result

    @explains_failures
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return all ranks' objects at root, in rank order; None on other ranks."""
        messages = _listed(self, [sendobj], [root]) if 0 <= root < self.size else [sendobj]
        with Exchange(self, messages, defers=True):
            items = super().gather(messages[0], root)
            return None if items is None else open_all(items)

    @explains_failures
    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Send each rank its object from root's sequence; return this rank's object."""
        messages = self._each_listed(sendobj) if self.rank == root and not is_plain(sendobj) else []
        with Exchange(self, messages):
            return super().scatter(messages or sendobj, root)

    @explains_failures
    def alltoall(self, sendobj: Any) -> list[Any]:
        """Send an object to each rank; return the objects received, in rank order."""
        messages = [] if is_plain(sendobj) else self._each_listed(sendobj)
        with Exchange(self, messages, defers=True):
            return open_all(super().alltoall(messages or sendobj))

    def _each_listed(self, sendobj: Any) -> list[Any]:
        """Return what is pickled in place of each object of a sequence, one for each rank."""
        items = list(sendobj)
        return _listed(self, items, range(self.size)) if len(items) == self.size else items

    @explains_failures
    def allgather(self, sendobj: Any) -> list[Any]:
        """Return all ranks' objects on every rank, in rank order."""
        own, contents = None, None if is_plain(sendobj) else pickled(sendobj)
        if contents is not None:
            sendobj, own = Share.of(self, contents, "allgather") if contents.arrays else (Packed(contents), None)
        with Exchange(self, defers=True):
            items = super().allgather(sendobj)
            if any(type(item) is Share for item in items):
                items = open_shares(self, items, own)
            return open_all(items)

    @explains_failures
    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce all ranks' objects, and return the result on every rank.

        `Allreduce` reduces device arrays with SUM, PROD, BAND, BOR and BXOR if they have the same form on all ranks.
        mpi4py reduces everything else: it pickles the objects and applies Python's operators.
        """
        if not operands.is_reduced(sendobj, op):
            result = super().allreduce(sendobj, operands.listing(op))
            return super().allreduce(sendobj, op) if type(result) is operands.Operands else result
        stand_in, own = operands.form_operand(sendobj)
        result = operands.reduce_on_all(self, super().allreduce(stand_in, operands.listing(op)), own, op)
        return super().allreduce(sendobj, op) if result is None else result

    @explains_failures
    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """Reduce all ranks' objects, and return the result at root; None on other ranks.

        For device arrays with SUM, PROD, BAND, BOR or BXOR, kernels move the data, and root applies the operator.
        """
        messages: tuple[Any, ...] = ()
        if 0 <= root < self.size and operands.is_reduced(sendobj, op):
            sendobj, message = operands.sealed_operand(self, sendobj, root)
            messages = (message,)
        with Exchange(self, messages, defers=True):
            result = super().reduce(sendobj, operands.listing(op), root)
            return operands.reduce_here(result, op) if type(result) is operands.Operands else result

    @explains_failures
    def scan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce the objects of the ranks up to this one, as mpi4py's `scan`."""
        operands.meet_before_duplicate(self)
        return super().scan(sendobj, op)

    @explains_failures
    def exscan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce the objects of the ranks before this one, as mpi4py's `exscan`."""
        operands.meet_before_duplicate(self)
        return super().exscan(sendobj, op)
