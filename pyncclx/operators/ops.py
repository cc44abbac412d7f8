"""The built-in reduction operators: MPI's and AVG, with functors and datatypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import Datatype
from ..errors import MPIError, NotSupported
from .user_op import Op as UserOp
from .user_op import no_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class BuiltinOp:
    """A built-in reduction operator.

    Operators are unique objects: compare them with ``is``, or use them as dictionary keys.

    Attributes
    ----------
    name : str
        MPI's name; MPI has no "AVG".
    cxx : str
        The kernels' functor.
    mpi : MPI.Op or None
        None if MPI has no such operator.
    kinds : frozenset of str
        The kinds of datatypes that it is defined on.
    """

    name: str
    cxx: str
    mpi: MPI.Op | None
    kinds: frozenset[str]

    def __reduce__(self) -> tuple[Callable[[str], BuiltinOp], tuple[str]]:
        # Unpickling looks the operator up, so that identity holds.
        return _named, (self.name,)


AnyOp = MPI.Op | BuiltinOp | UserOp  # `op` argument of reductions


def of(op: AnyOp, operation: str = "reduction") -> BuiltinOp | UserOp:
    """Return the operator for an `op` argument; `operation` is for error messages.

    Raises
    ------
    TypeError
        `op` is neither an `MPI.Op`, nor `pyncclx.AVG`, nor a `pyncclx.Op`.
    NotSupported
        `op` was made with `MPI.Op.Create`: its function runs on the host.
    MPI.Exception
        `op` is `MPI.OP_NULL`, `MPI.REPLACE` or `MPI.NO_OP` (class ERR_OP).
    """
    if isinstance(op, (BuiltinOp, UserOp)):
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


def predefined(op: MPI.Op) -> BuiltinOp | None:
    """Return the built-in operator for one of MPI's.

    Return None for an operator that does not reduce, or that the program has created.
    """
    return _by_handle.get(op.handle)


def template(operation: str, op: BuiltinOp | UserOp, buffer: Buffer) -> tuple[str, ...]:
    """Return the template arguments of a kernel: the elements' type and the functor.

    Parameters
    ----------
    operation : str
        For messages, such as ``"Allreduce"``.
    op : BuiltinOp or pyncclx.Op
    buffer : Buffer
        A buffer of the reduction.

    Raises
    ------
    ValueError
        `op` is a `pyncclx.Op` for other elements.
    MPI.Exception, NotSupported
        Raised by `check`.
    """
    if isinstance(op, UserOp):
        return op.bind(operation, buffer).template
    check(operation, op, buffer.datatype)
    return buffer.datatype.cxx, op.cxx


def check(operation: str, op: BuiltinOp, datatype: Datatype) -> None:
    """Raise, like MPI, if an operator is not defined on a datatype.

    Parameters
    ----------
    operation : str
        For the message, such as ``"Allreduce"``.
    op : BuiltinOp
    datatype : Datatype

    Raises
    ------
    MPI.Exception
        `op` is not defined on `datatype` (class ERR_OP).
    TypeError
        `datatype` is one that the library only moves: text, dates, records and so on.
    NotSupported
        MPI can reduce `datatype`, but no GPU can (long double).
    """
    if datatype.kind in op.kinds:
        return
    if datatype.kind == "void":
        raise no_arithmetic(operation)
    if datatype.kind == "opaque":
        raise NotSupported(f"{operation}: a GPU cannot compute with {datatype.name}; convert to float64 first")
    takes = ", ".join(sorted(op.kinds))
    raise MPIError(
        MPI.ERR_OP,
        f"{operation}: {op.name} is not defined on {datatype.name} ({datatype.kind}); it takes {takes} types",
    )


def _named(name: str) -> BuiltinOp:
    return TABLE[name]


def _op(name: str, cxx: str, kinds: str) -> BuiltinOp:
    return BuiltinOp(name, cxx, getattr(MPI, name), frozenset(kinds.split()))


SUM = _op("SUM", "Sum", "integer float complex")
PROD = _op("PROD", "Prod", "integer float complex")
MIN = _op("MIN", "Min", "integer float")
MAX = _op("MAX", "Max", "integer float")
AVG = BuiltinOp("AVG", "Avg", None, frozenset(("float", "complex")))
LAND = _op("LAND", "LogicalAnd", "integer bool")
LOR = _op("LOR", "LogicalOr", "integer bool")
LXOR = _op("LXOR", "LogicalXor", "integer bool")
BAND = _op("BAND", "BitAnd", "integer")
BOR = _op("BOR", "BitOr", "integer")
BXOR = _op("BXOR", "BitXor", "integer")
MINLOC = _op("MINLOC", "MinLoc", "pair")
MAXLOC = _op("MAXLOC", "MaxLoc", "pair")

TABLE = {op.name: op for op in (SUM, PROD, MIN, MAX, AVG, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC)}
_by_handle = {op.mpi.handle: op for op in TABLE.values() if op.mpi is not None}
