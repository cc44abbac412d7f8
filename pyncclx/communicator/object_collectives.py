"""mpi4py's lower-case collectives: kernels move the device arrays of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..messages.base import MessageBase
from ..objects import operands
from ..objects.broadcast import Share, in_step, in_step_with_arrays, open_broadcast, open_shares, with_shares
from ..objects.messages import Exchange, seal, withdraw
from ..objects.opening import open_all
from ..objects.pickled import Packed, is_plain, pickled, take_apart
from ..team.base import IntraBase


def _listed(comm: MessageBase, items: list[Any], dests: Iterable[int]) -> list[Any]:
    """Return the objects that mpi4py pickles in place of `items`, one for each rank.

    All items are pickled before any of them is offered to its receiver. A receiver unpickles its items one by one. If
    one raises, the receiver declines the others.
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


def _allreduce(comm: MessageBase, obj: Any, op: Any) -> Any:
    """Reduce objects on all ranks by mpi4py; the caller defers signal handlers."""
    return operands.carefully(comm, partial(MPI.Comm.allreduce, comm, obj), op)


if TYPE_CHECKING:

    class _IntraBase(IntraBase, MessageBase):
        """For type checkers: methods of other classes that `ObjectCollectives` calls."""
else:
    _IntraBase = MessageBase


class ObjectCollectives(_IntraBase):
    """Collectives of Python objects; see `ObjectMessages`."""

    @in_step_with_arrays
    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast root's object, and return a copy on every rank, also on root."""
        own = None
        if self.rank == root and not is_plain(obj) and (contents := take_apart(obj)) is not None:
            obj, own = Share.of(self, contents, "bcast")

        def opened(share: Share) -> Any:
            return open_broadcast(self, share, own, root)

        return with_shares(super().bcast, (obj, root), lambda result: type(result) is Share, opened)

    @in_step_with_arrays
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return all ranks' objects at root, in rank order; None on other ranks."""
        messages = _listed(self, [sendobj], [root]) if 0 <= root < self.size else [sendobj]
        with Exchange(self, messages, defers=True):
            items = super().gather(messages[0], root)
            return None if items is None else open_all(items)

    @in_step_with_arrays
    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Send each rank its object from root's sequence; return this rank's object."""
        messages = self._each_listed(sendobj) if self.rank == root and not is_plain(sendobj) else []
        with Exchange(self, messages):
            return super().scatter(messages or sendobj, root)

    @in_step_with_arrays
    def alltoall(self, sendobj: Any) -> list[Any]:
        """Send an object to each rank; return the objects received, in rank order."""
        messages = [] if is_plain(sendobj) else self._each_listed(sendobj)
        with Exchange(self, messages, defers=True):
            return open_all(super().alltoall(messages or sendobj))

    def _each_listed(self, sendobj: Any) -> list[Any]:
        """Return the objects that mpi4py pickles for a sequence of one object a rank."""
        items = list(sendobj)
        return _listed(self, items, range(self.size)) if len(items) == self.size else items

    @in_step_with_arrays
    def allgather(self, sendobj: Any) -> list[Any]:
        """Return all ranks' objects on every rank, in rank order."""
        own, contents = None, None if is_plain(sendobj) else pickled(sendobj)
        if contents is not None:
            sendobj, own = Share.of(self, contents, "allgather") if contents.arrays else (Packed(contents), None)

        def opened(items: list[Any]) -> list[Any]:
            return open_shares(self, items, own)

        with Exchange(self, defers=True):
            return open_all(with_shares(super().allgather, (sendobj,), lambda items: Share in map(type, items), opened))

    @in_step
    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce all ranks' objects, and return the result on every rank.

        If all ranks pass a device array of the same shape and dtype, and the operator is SUM, PROD, BAND, BOR or BXOR,
        `Allreduce` reduces it in a kernel. mpi4py reduces everything else: it pickles the objects and applies the
        operator in Python.
        """
        if not operands.is_reduced(sendobj, op):
            result = _allreduce(self, sendobj, operands.listing(op))
            return _allreduce(self, sendobj, op) if operands.are_sound(self, result) else result
        stand_in, own = operands.form_operand(sendobj)
        result = operands.reduce_on_all(self, _allreduce(self, stand_in, operands.listing(op)), own, op)
        return _allreduce(self, sendobj, op) if result is None else result

    @in_step
    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """Reduce all ranks' objects, and return the result at root; None on other ranks.

        For device arrays with SUM, PROD, BAND, BOR or BXOR, kernels move the data, and root applies the operator.
        """
        messages: tuple[Any, ...] = ()
        if 0 <= root < self.size and operands.is_reduced(sendobj, op):
            sendobj, message = operands.sealed_operand(self, sendobj, root)
            messages = (message,)
        with Exchange(self, messages, defers=True):
            reduction = partial(MPI.Comm.reduce, self, sendobj, root=root)
            result = operands.carefully(self, reduction, operands.listing(op))
            return operands.reduce_here(self, result, op) if type(result) is operands.Operands else result

    @in_step
    def scan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce the objects of rank 0 to this rank, like mpi4py's `scan`."""
        return operands.carefully(self, partial(super().scan, sendobj), op)

    @in_step
    def exscan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce the objects of the ranks below this one, like mpi4py's `exscan`."""
        return operands.carefully(self, partial(super().exscan, sendobj), op)
