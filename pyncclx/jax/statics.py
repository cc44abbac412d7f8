"""Arguments of traced calls: their checks, and numbers for those that are objects.

A compiled program has a number where MPI has a handle: handles are pointers that differ from run to run, and persistent
caches of compiled programs compare the programs' text. MPI's operators have the same numbers in every run, and so has
COMM_WORLD. Other objects are numbered in the order of their first use.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import of
from ..communicator.adopting import Communicator
from ..errors import NotSupported
from ..operators import ops
from ..operators.user_op import Op
from ..system.process import lock
from ..team.state import State

__all__ = ["Static", "check_operator", "comm_of", "op_of", "static_of", "value_of"]


class Static:
    """An object passed to a JAX primitive, and its number in compiled programs."""

    def __init__(self, value: Any, number: int) -> None:
        self.value, self.number = value, number

    def __repr__(self) -> str:
        return f"{type(self.value).__name__}#{self.number}"


# Objects of each kind by number. They are never dropped: a compiled program may outlive its trace.
_OPS = [Static(op.mpi or op, number) for number, op in enumerate(ops.TABLE.values())]
_KINDS: dict[str, list[Any]] = {"comm": [None], "op": _OPS, "status": [], "shuffle": []}  # None is for COMM_WORLD

_by_state: weakref.WeakKeyDictionary[State, Static] = weakref.WeakKeyDictionary()
_by_identity = {id(op): each for op, each in zip(ops.TABLE.values(), _OPS, strict=True)}
# Two threads that trace programs must not give their objects one number.
_LOCK = lock()


def value_of(kind: str, number: int) -> Any:
    """Return the object that a compiled program's number stands for, or the number."""
    if kind not in _KINDS:
        return number
    try:
        return _KINDS[kind][number].value
    except (IndexError, AttributeError):
        raise LookupError(f"this process has no {kind} {number} yet; trace a call with it first") from None


def comm_of(comm: MPI.Comm | None) -> Static:
    """Return the duplicate of a communicator on which compiled programs call.

    XLA makes calls in its own threads, and only one thread at a time may use a communicator. Collective over the
    communicator at its first use.

    Raises
    ------
    TypeError, NotSupported
        If `comm` is not a communicator, or is an intercommunicator.
    """
    ours: Any = Communicator(comm)
    if not isinstance(ours, MPI.Intracomm):
        raise NotSupported("jax: intercommunicators have no collectives on device arrays; Merge it")
    state: State = cast(Any, ours).state
    if state not in _by_state:
        private: Any = ours.Dup()
        private.Set_name(f"jax: {ours.Get_name()}"[: MPI.MAX_OBJECT_NAME - 1])
        private.staging, private.blocking, private.stream = True, "stream", None
        is_world = ours == MPI.COMM_WORLD
        with _LOCK:
            comms = _KINDS["comm"]
            _by_state[state] = static = Static(private, 0 if is_world else len(comms))
            comms[static.number : static.number + 1] = [static]
    return _by_state[state]


def op_of(op: Any) -> Any:
    """Return a reduction operator with its number.

    Raises
    ------
    TypeError
        If `op` is neither an `MPI.Op` nor one of pyncclx's operators.
    """
    if not isinstance(op, (MPI.Op, Op, ops.BuiltinOp)):
        raise TypeError(f"jax: op is {op!r}; expecting MPI.SUM, another MPI.Op, or a pyncclx.Op")
    builtin = ops.predefined(op) if isinstance(op, MPI.Op) else None
    return static_of("op", builtin or op)


def static_of(kind: str, value: Any) -> Any:
    """Return an operator, a status or a token shuffle as a `Static`; None for None."""
    with _LOCK:
        if value is not None and id(value) not in _by_identity:
            _by_identity[id(value)] = Static(value, len(_KINDS[kind]))
            _KINDS[kind].append(_by_identity[id(value)])
        return _by_identity.get(id(value))


def check_operator(op: Static, x: Any, name: str) -> None:
    """Raise as MPI does if an operator is not defined on an array's elements."""
    elements = Buffer(0, 0, of(x.dtype), (0,), False, None, None)
    try:
        ops.template(name, ops.of(op.value, name), elements)
    except NotSupported:  # MPI reduces copies on the host
        return
