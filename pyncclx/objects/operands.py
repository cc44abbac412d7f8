"""Reduce device arrays in mpi4py's `allreduce` and `reduce` of objects.

mpi4py applies an operator to Python objects, and different ranks may pass different kinds: an array, a number. So each
rank with an array passes an `Operands` to mpi4py in its place, with an operator that only lists operands. The result of
mpi4py's reduction is the list of all ranks' operands, which is then reduced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.packed_errors import pack_error, unpack_error
from mpi_bootstrap.plain import await_duplication
from mpi_bootstrap.waiting import begin, complete

from ..collectives.allreduce import allreduce
from ..errors import NotSupported
from ..launch.run import by_new_kernel
from ..messages.base import MessageBase
from ..team.base import IntraBase
from ..team.state import state_of
from .broadcast import finished, has_kernels
from .libraries import Form, array_classes
from .messages import Sealed, seal
from .opening import opened
from .packed_arrays import PackedArrays
from .pickled import Short, pickles_by_default, take_apart

_INTEGERS_ONLY = (MPI.BAND, MPI.BOR, MPI.BXOR)
# MPI's operators, each with Python's operator that computes the same.
_ELEMENTWISE = (MPI.SUM, MPI.PROD, *_INTEGERS_ONLY)


class Operands:
    """An operator's operands in order: arrays' forms, sealed arrays, or other objects."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


def listing(op: Any) -> Any:
    """Return an operator that lists `Operands`, and applies `op` to other objects.

    So the program's own operators are never called with an `Operands`.
    """
    return functools.partial(_combined, op) if isinstance(op, MPI.Op) and op in _ELEMENTWISE else op


def _combined(op: Any, first: Any, second: Any) -> Any:
    if type(first) is Operands or type(second) is Operands:
        return Operands([*_items(first), *_items(second)])
    return op(first, second)


def _items(operand: Any) -> list[Any]:
    return operand.items if type(operand) is Operands else [operand]


@dataclass
class Failure:
    """Result of an operator that has raised on some rank."""

    packed: bytes
    rank: int

    def exception(self, comm: MPI.Comm) -> Exception:
        """Return the operator's exception, whose text names the rank."""
        return unpack_error(self.packed, [self.rank], comm.size)


class Careful:
    """Operator for reductions of objects that returns a `Failure` instead of raising.

    If mpi4py's method raised on one rank, that rank would not send its result, and others would wait for it.
    """

    _error: BaseException | None = None

    def __init__(self, comm: MPI.Comm, op: Any) -> None:
        self._comm, self._op = comm, MPI.SUM if op is None else op

    def __call__(self, first: Any, second: Any) -> Any:
        kinds = type(first), type(second)
        if Failure in kinds and Operands not in kinds:
            return first if kinds[0] is Failure else second
        try:
            return self._op(first, second)
        except BaseException as error:
            self._error = error
            return Failure(pack_error(error), self._comm.rank)

    def checked(self, result: Any) -> Any:
        """Return the result of the reduction, or raise the operator's exception.

        The caller checks the items of `Operands`.
        """
        if type(result) is Operands:
            return result
        if self._error is not None:
            raise self._error
        return _checked(self._comm, result)


def carefully(comm: MessageBase, reduction: Callable[[Careful], Any], op: Any) -> Any:
    """Run mpi4py's reduction; if its operator raises, raise on all receiving ranks."""
    _meet_before_duplicate(comm)
    careful = Careful(comm, op)
    return careful.checked(reduction(careful))


def _checked(comm: MPI.Comm, operand: Any) -> Any:
    """Return an operand, or raise its exception if it is a `Failure`."""
    if type(operand) is Failure:
        raise operand.exception(comm)
    return operand


def are_sound(comm: MPI.Comm, result: Any) -> bool:
    """Return whether a result is `Operands`; raise the first `Failure` in it."""
    return type(result) is Operands and all(_checked(comm, item) is item for item in result.items)


def is_reduced(obj: Any, op: Any) -> bool:
    """Return whether an object is a device array that the operator reduces by element."""
    own = array_classes().get(type(obj))
    if own is None or not isinstance(op, MPI.Op) or op not in _ELEMENTWISE:
        return False
    if not own.moves(obj) or not pickles_by_default():
        return False
    is_number, is_integer = own.is_number(obj)
    return is_integer if op in _INTEGERS_ONLY else is_number


def form_operand(array: Any) -> tuple[Operands, PackedArrays]:
    """Return the operand for an array in `allreduce`, and the packed array."""
    packed = PackedArrays.of([array])
    return Operands([packed.forms[0]]), packed


def reduce_on_all(comm: IntraBase, operands: Operands, own: PackedArrays | None, op: Any) -> Any:
    """Reduce all ranks' arrays by a kernel, into a new array (collective).

    Return None if the operands are not arrays of one form, or if no kernel can reduce them: on all ranks, because all
    have the same operands.
    """
    forms = operands.items
    if not are_sound(comm, operands) or len(forms) != comm.size:
        return None
    if any(type(form) is not Form or form != forms[0] for form in forms):
        return None
    assert own is not None
    if not has_kernels(comm):
        return None
    _, made = comm.meet(lambda team: PackedArrays.like((forms[0],)))
    try:
        by_new_kernel(comm, allreduce, own.arrays[0], made.arrays[0], op)
    except NotSupported:
        return None
    return finished(comm, made)[0]


def sealed_operand(comm: MessageBase, array: Any, root: int) -> tuple[Operands, Sealed | Short]:
    """Return the operand for an array in `reduce`, and the sealed message in it.

    Only root can open the operand.
    """
    contents = take_apart(array)
    assert contents is not None
    sealed = seal(comm, contents, root)
    return Operands([sealed]), sealed


def reduce_here(comm: MPI.Comm, operands: Operands, op: Callable[[Any, Any], Any]) -> Any:
    """Reduce the operands in this process, and open each when it is needed."""
    with closing(opened(operands.items)) as each:  # type: ignore[type-var]
        return functools.reduce(op, (_checked(comm, operand) for operand in each))


def _meet_before_duplicate(comm: MessageBase) -> None:
    """Wait for all ranks before mpi4py's first reduction of objects. Collective.

    In that reduction, mpi4py duplicates the communicator, and holds the GIL while it waits for the other ranks. These
    may wait for messages between nodes that threads of this process send, so wait for the ranks here, without the GIL.
    Like mpi4py's wait, this one has no time limit, but it ends when a rank fails.
    """
    state = state_of(comm)
    if not state.has_duplicate:
        # First wait for the background thread: it must not end a rendezvous while this thread waits in MPI.
        state.settle()
        begin(comm)
        await_duplication(comm)
        complete(comm, MPI.Comm.Ibarrier(comm), math.inf)
        state.has_duplicate = True
