"""`pyncclx.Op`: a reduction operator from a Python function, which Numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.datatypes import Datatype
from ..errors import NotSupported
from . import linked
from .bound_op import BoundOp, bound_op, common_type
from .kept import kept


class Op:
    """A reduction operator from a Python function, for device arrays.

    Numba compiles the function at the operator's first use, and it is linked into the kernel. A sum written in Python
    runs as fast as `MPI.SUM`. Make an operator once, not at every call. Captured variables keep the values of the first
    use; for other values, make another operator.

    Parameters
    ----------
    fn : callable
        ``fn(a, b)`` returns the combination of two elements. For a structured `dtype` it is ``fn(a, b, out)``, which
        sets fields of `out`; `out` begins as a copy of `a`. It can be decorated with Numba's ``jit`` or
        ``cuda.jit(device=True)``. It must be associative; it is applied in the order of the ranks:
        ``fn(fn(x0, x1), x2)``. Kernels also call it with elements whose bytes are all 0, and ignore these results. It
        must not raise, because a kernel cannot pass on an exception.
    dtype : NumPy dtype, str, or another argument of `numpy.dtype`, optional
        Type of an element. float16 and bfloat16 are computed in float32, and rounded once. Default: the datatype of
        each call's arrays, if it is not structured.
    identity : scalar, tuple or record, optional
        The neutral value. No operation of pyncclx uses it.
    commute : bool, default True
        Whether ``fn(a, b)`` equals ``fn(b, a)``, as for `MPI.Op.Is_commutative`. The ranks' order is kept in any case.

    Attributes
    ----------
    name : str
        Name of the function.
    dtype : numpy.dtype, Datatype or None
        A structured `numpy.dtype` as it was passed; for another dtype, pyncclx's own description. None if none was
        passed.

    Raises
    ------
    TypeError
        If `fn` is no Python function. At the first use, on all ranks: if it has a ``raise`` or an ``assert``, or if
        Numba cannot compile it. The text has Numba's message and the line.
    KeyError, NotSupported
        If `dtype` is not a known datatype, or if a GPU cannot compute with it.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> larger = pyncclx.Op(lambda a, b: a if a > b else b, "f4")
    >>> x, y = np.arange(4, dtype="f4"), np.empty(4, "f4")
    >>> comm.Allreduce(x, y, larger)
    >>> y.tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    def __init__(self, fn: Callable[..., Any], dtype: Any = None, identity: Any = None, commute: bool = True) -> None:
        self.fn: Callable[..., Any] = getattr(fn, "py_func", fn)
        if not hasattr(self.fn, "__code__"):
            raise TypeError(f"Op: fn is {fn!r}; expecting a Python function of two elements")
        self.name = self.fn.__name__
        self.dtype = None if dtype is None else _element_type(dtype)
        self.identity = _checked_identity(self.dtype, identity)
        self.commute = commute
        self._kept: Callable[..., Any] | None = None  # copy of the function at its first use
        self._bound: dict[Any, BoundOp] = {}

    def __repr__(self) -> str:
        return f"pyncclx.Op({self.name}, {self.dtype.name if isinstance(self.dtype, Datatype) else self.dtype})"

    def bind(self, operation: str, buffer: Buffer) -> BoundOp:
        """Return the operator for a buffer's elements.

        Raises
        ------
        ValueError
            The buffer has other elements than the operator.
        TypeError
            Raised by `kept`.
        """
        dtype = buffer.datatype if self.dtype is None else self.dtype
        if isinstance(dtype, Datatype):
            self._check_datatype(operation, dtype, buffer)
        else:
            self._check_records(operation, dtype, buffer)
        if dtype not in self._bound:
            with linked.LOCK:
                self._kept = self._kept or kept(self.fn, "Op")
                if dtype not in self._bound:
                    self._bound[dtype] = bound_op(self._kept, dtype)
        return self._bound[dtype]

    def _check_datatype(self, operation: str, dtype: Datatype, buffer: Buffer) -> None:
        if buffer.datatype is not dtype:
            raise ValueError(f"{operation}: {self!r} reduces {dtype.name}, the arrays hold {buffer.datatype.name}")
        if getattr(getattr(buffer.owner, "dtype", None), "names", None) and self.dtype is None:
            raise ValueError(f"{operation}: the arrays hold records; give {self!r} their dtype")
        if dtype.kind == "void":
            raise no_arithmetic(operation)

    def _check_records(self, operation: str, dtype: np.dtype[Any], buffer: Buffer) -> None:
        own = getattr(buffer.owner, "dtype", None)
        of_bytes = buffer.datatype.kind == "void" or buffer.datatype is datatypes.TABLE["uint8"]
        same = own == dtype if getattr(own, "names", None) else of_bytes
        if not same and buffer.datatype is not common_type(dtype):
            held = own or buffer.datatype.name
            raise ValueError(f"{operation}: {self!r} reduces records of {dtype}; the arrays hold {held}")
        if buffer.nbytes % dtype.itemsize:
            raise ValueError(
                f"{operation}: {buffer.nbytes} bytes are no whole number of records of {dtype.itemsize} bytes "
                f"({self!r}); give whole records"
            )


def no_arithmetic(operation: str) -> TypeError:
    """Return the error for elements that kernels move but cannot compute with."""
    return TypeError(
        f"{operation}: the arrays hold text, dates, records or other elements without arithmetic here; "
        "pass .view('i8') or the like to reduce them as numbers, or give a pyncclx.Op the dtype of records"
    )


def _element_type(dtype: Any) -> Datatype | np.dtype[Any]:
    """Return a row of the table of datatypes, or a structured dtype."""
    if isinstance(dtype, (list, np.dtype)) and np.dtype(dtype).names:
        return np.dtype(dtype)
    row = datatypes.of(dtype)
    if row.kind in ("pair", "opaque", "void"):
        raise NotSupported(f"Op: dtype {row.name}; give a structured NumPy dtype, or one of the numbers")
    return row


def _checked_identity(dtype: Datatype | np.dtype[Any] | None, identity: Any) -> Any:
    if identity is None or dtype is None:
        return identity
    return np.array(identity, dtype if isinstance(dtype, np.dtype) else None)[()]
