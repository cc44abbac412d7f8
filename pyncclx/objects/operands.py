"""Reductions of device arrays by mpi4py's `allreduce` and `reduce` of objects.

mpi4py applies an operator to Python objects. One rank may have an array and another a number. So each rank with an
array passes an `Operands` to mpi4py instead, and the operator only lists them. The result has the operands of all
ranks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.duplicating import await_duplication
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
# For these operators, Python's operator is MPI's.
_ELEMENTWISE = (MPI.SUM, MPI.PROD, *_INTEGERS_ONLY)


class Operands:
    """Operands of an operator in order: forms or sealed arrays, and other objects."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


def listing(op: Any) -> Any:
    """Return an operator that lists `Operands`, and applies `op` to other objects.

    So the operators of the program's classes never see an `Operands`.
    """
    return functools.partial(_combined, op) if isinstance(op, MPI.Op) and op in _ELEMENTWISE else op


def _combined(op: Any, first: Any, second: Any) -> Any:
    if type(first) is Operands or type(second) is Operands:
        return Operands([*_items(first), *_items(second)])
    return op(first, second)


def _items(operand: Any) -> list[Any]:
    return operand.items if type(operand) is Operands else [operand]


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
    """Return the operand for an array in `allreduce`, and the array, packed."""
    packed = PackedArrays.of([array])
    return Operands([packed.forms[0]]), packed


def reduce_on_all(comm: IntraBase, operands: Operands, own: PackedArrays | None, op: Any) -> Any:
    """Return all ranks' operands reduced by a kernel; None if unequal (collective).

    The result is a new array. The operands are equal on all ranks, so all ranks return alike.
    """
    forms = operands.items
    if len(forms) != comm.size or any(type(form) is not Form or form != forms[0] for form in forms):
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
    """Return the operand for an array in `reduce`, and the message to finish.

    Only root can open the operand.
    """
    contents = take_apart(array)
    assert contents is not None
    sealed = seal(comm, contents, root)
    return Operands([sealed]), sealed


def reduce_here(operands: Operands, op: Callable[[Any, Any], Any]) -> Any:
    """Return the operands reduced by this process; each is opened when it is needed."""
    with closing(opened(operands.items)) as each:  # type: ignore[type-var]
        return functools.reduce(op, each)


def meet_before_duplicate(comm: MessageBase) -> None:
    """Wait for all ranks before mpi4py's first reduction of objects. Collective.

    mpi4py then duplicates the communicator, and holds the interpreter while it waits for the other ranks. They may be
    waiting for messages between nodes, which threads of this process send. As mpi4py's, this wait has no time limit; it
    ends when a rank fails.
    """
    state = state_of(comm)
    if not state.has_duplicate:
        begin(comm)
        await_duplication(comm)
        complete(comm, MPI.Comm.Ibarrier(comm), math.inf)
        state.has_duplicate = True
