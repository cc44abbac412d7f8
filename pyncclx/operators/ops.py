"""The reduction operators: MPI op <-> C++ functor of the kernels <-> NumPy reference, and their domains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import MOVED_ONLY, Datatype
from ..errors import MPIError, NotSupported
from .user_op import Op as UserOp
from .user_op import no_arithmetic

__all__ = [
    "AVG",
    "BAND",
    "BOR",
    "BXOR",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MAXLOC",
    "MIN",
    "MINLOC",
    "PROD",
    "SUM",
    "TABLE",
    "Op",
    "check",
    "of",
    "template",
]

Array = npt.NDArray[Any]
HALVES = ("float16", "bfloat16")  # folded in float32, and rounded once


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One reduction operator. Operators are unique objects: compare with ``is``, use as dictionary keys.

    Attributes
    ----------
    name : str
        MPI's name; "AVG" is ours.
    cxx : str
        The functor in kernels.
    mpi : MPI.Op or None
        None where MPI has no such operator.
    kinds : frozenset of str
        The datatype kinds it is defined on.
    reference : callable
        The arrays of all ranks, in rank order, to the result: left fold, half types through float32.
    """

    name: str
    cxx: str
    mpi: MPI.Op | None
    kinds: frozenset[str]
    reference: Callable[[Sequence[Array]], Array]

    def __reduce__(self) -> tuple[Callable[[str], Op], tuple[str]]:
        return _named, (self.name,)  # unpickling finds the operator, so that identity holds


def of(op: Op | UserOp | MPI.Op, operation: str = "reduction") -> Op | UserOp:
    """Find the operator that `op` names; `operation` is for messages, such as ``"Allreduce"``.

    Raises
    ------
    TypeError
        Neither an `MPI.Op` nor an operator of ours or of `pyncclx.Op`.
    NotSupported
        Made with `MPI.Op.Create`: its function runs on the host.
    MPI.Exception
        `MPI.OP_NULL`, `MPI.REPLACE` or `MPI.NO_OP` (class ERR_OP).
    """
    if isinstance(op, (Op, UserOp)):
        return op
    if not isinstance(op, MPI.Op):
        raise TypeError(f"{operation}: op is {op!r}; expecting an MPI.Op such as MPI.SUM, pyncclx.AVG or a pyncclx.Op")
    found = _by_handle.get(op.handle)
    if found is not None:
        return found
    if op.is_predefined:
        raise MPIError(MPI.ERR_OP, f"{operation}: this MPI operator does not reduce; use one of {', '.join(TABLE)}")
    raise NotSupported(
        f"{operation}: an operator made with MPI.Op.Create calls a Python function on the host and cannot reduce "
        "device arrays; make it a pyncclx.Op, which Numba compiles for the device, or reduce host copies"
    )


def predefined(op: MPI.Op) -> Op | None:
    """The operator of that name here; None for those that do not reduce, or were made by a program."""
    return _by_handle.get(op.handle)


def template(operation: str, op: Op | UserOp, buffer: Buffer) -> tuple[str, ...]:
    """The elements' type and the functor, as kernels are instantiated with them; refuses what has no meaning.

    Parameters
    ----------
    operation : str
        For messages, such as ``"Allreduce"``.
    op : Op or pyncclx.Op
    buffer : Buffer
        One of those to be reduced.

    Raises
    ------
    ValueError
        A `pyncclx.Op` for other elements.
    MPI.Exception, NotSupported
        As `check`.
    """
    if isinstance(op, UserOp):
        return op.bind(operation, buffer).template
    check(operation, op, buffer.datatype)
    return buffer.datatype.cxx, op.cxx


def check(operation: str, op: Op, datatype: Datatype) -> None:
    """Refuse what MPI refuses: an operator on a datatype that it is not defined for.

    Parameters
    ----------
    operation : str
        For the message, such as ``"Allreduce"``.
    op : Op
    datatype : Datatype

    Raises
    ------
    MPI.Exception
        Class ERR_OP.
    TypeError
        Elements that the library only moves: text, dates, records and the like.
    NotSupported
        MPI would reduce it, no GPU can (long double).
    """
    if datatype.kind in op.kinds:
        return
    if datatype is MOVED_ONLY["bytes"]:
        raise no_arithmetic(operation)
    if datatype.kind == "opaque":
        raise NotSupported(f"{operation}: a GPU cannot compute with {datatype.name}; convert to float64 first")
    takes = ", ".join(sorted(op.kinds))
    raise MPIError(
        MPI.ERR_OP,
        f"{operation}: {op.name} is not defined on {datatype.name} ({datatype.kind}); it takes {takes} types",
    )


def _named(name: str) -> Op:
    return TABLE[name]


def _fold(pairwise: Callable[[Any, Any], Any], arrays: Sequence[Array]) -> Array:
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.name in HALVES else dtype
    folded = functools.reduce(pairwise, (array.astype(wide) for array in arrays))
    return np.asarray(folded).astype(dtype)


def _average(arrays: Sequence[Array]) -> Array:
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.name in HALVES else dtype
    total = _fold(np.add, [array.astype(wide) for array in arrays])
    size = total.real.dtype.type(len(arrays))
    average = np.empty_like(total)
    average.real = total.real / size  # each part by itself: NumPy divides complex numbers by a reciprocal
    if dtype.kind == "c":
        average.imag = total.imag / size
    return average.astype(dtype)


def _product(left: Array, right: Array) -> Array:
    if left.dtype.kind != "c":
        return np.multiply(left, right)
    product = np.empty_like(left)  # NumPy fuses a multiplication and an addition where the CPU can
    product.real = left.real * right.real - left.imag * right.imag
    product.imag = left.real * right.imag + left.imag * right.real
    return product


def _smaller(left: Array, right: Array) -> Array:
    return np.where(right < left, right, left)  # as the kernel does, where np.minimum differs on NaN


def _larger(left: Array, right: Array) -> Array:
    return np.where(left < right, right, left)


def _better(less: Callable[[Any, Any], Any], left: Array, right: Array) -> Array:
    """Choose between two arrays of (value, index); equal values keep the lower index."""
    names = left.dtype.names
    if names is None:
        raise TypeError(f"expecting a structured dtype of (value, index), got {left.dtype}")
    value, index = names[0], names[1]
    tie = (left[value] == right[value]) & (right[index] < left[index])
    return np.where(less(right[value], left[value]) | tie, right, left)


def _op(name: str, cxx: str, kinds: str, pairwise: Callable[[Any, Any], Any]) -> Op:
    mpi = getattr(MPI, name)
    return Op(name, cxx, mpi, frozenset(kinds.split()), functools.partial(_fold, pairwise))


SUM = _op("SUM", "Sum", "integer float complex", np.add)
PROD = _op("PROD", "Prod", "integer float complex", _product)
MIN = _op("MIN", "Min", "integer float", _smaller)
MAX = _op("MAX", "Max", "integer float", _larger)
AVG = Op("AVG", "Avg", None, frozenset(("float", "complex")), _average)
LAND = _op("LAND", "LogicalAnd", "integer bool", np.logical_and)
LOR = _op("LOR", "LogicalOr", "integer bool", np.logical_or)
LXOR = _op("LXOR", "LogicalXor", "integer bool", np.logical_xor)
BAND = _op("BAND", "BitAnd", "integer", np.bitwise_and)
BOR = _op("BOR", "BitOr", "integer", np.bitwise_or)
BXOR = _op("BXOR", "BitXor", "integer", np.bitwise_xor)
MINLOC = _op("MINLOC", "MinLoc", "pair", functools.partial(_better, np.less))
MAXLOC = _op("MAXLOC", "MaxLoc", "pair", functools.partial(_better, np.greater))

TABLE = {op.name: op for op in (SUM, PROD, MIN, MAX, AVG, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC)}
_by_handle = {op.mpi.handle: op for op in TABLE.values() if op.mpi is not None}
