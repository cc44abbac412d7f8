"""Operators that a program's author writes: Python functions, compiled by Numba, called for every two elements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.datatypes import Datatype
from ..errors import NotSupported
from ..memory.layout import HEADER_PACKETS, PACK_NBYTES, Layout
from . import linked
from .linked import LinkedFunction

__all__ = ["Op", "Operator", "fitting", "named"]

LONGEST_GROUP = 1024  # bytes that one thread folds at once: some hundred registers would not hold more anyway
_WORDS = {8: "unsigned long long", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
_OF_BYTES = (datatypes.TABLE["uint8"], datatypes.MOVED_ONLY["bytes"])  # arrays that can hold records of any dtype


class Op:
    """A reduction operator from a Python function, for device arrays.

    The function is compiled by Numba at the operator's first use and linked into the kernel, so that a sum
    written in Python runs as fast as `MPI.SUM`. Make an operator once, not at every call.

    Parameters
    ----------
    fn : callable
        ``fn(a, b)`` returns what two elements make. For a structured `dtype` it is ``fn(a, b, out)``, which sets
        fields of `out`; `out` begins as a copy of `a`. A function decorated with Numba's ``jit`` or
        ``cuda.jit(device=True)`` will do. It must be associative, and is applied in the order of the ranks:
        ``fn(fn(x0, x1), x2)``. It may also be called for elements of zero bytes, whose result nobody sees.
    dtype : NumPy dtype, str, or what `numpy.dtype` takes, optional
        Of an element. float16 and bfloat16 are computed in float32, and rounded once. Left out: the datatype of
        each call's arrays, if it is not structured.
    identity : scalar, tuple or record, optional
        The value that changes no other. Kept for whoever asks; no operation here needs it.
    commute : bool, default True
        Whether ``fn(a, b)`` equals ``fn(b, a)``. Kept as MPI keeps it; the order of the ranks holds in any case.

    Attributes
    ----------
    name : str
        The function's.
    dtype : numpy.dtype, Datatype or None
        Structured dtypes as given; others by their row in the table of datatypes.

    Raises
    ------
    TypeError
        `fn` is no Python function; later, at the first use and on all ranks: Numba cannot compile it. The text
        has Numba's message and the line.
    KeyError, NotSupported
        From `dtype`: no such datatype, or none that a GPU can compute with.
    """

    def __init__(self, fn: Callable[..., Any], dtype: Any = None, identity: Any = None, commute: bool = True) -> None:
        self.fn: Callable[..., Any] = getattr(fn, "py_func", fn)
        if not hasattr(self.fn, "__code__"):
            raise TypeError(f"Op: fn is {fn!r}; expecting a Python function of two elements")
        self.name = self.fn.__name__
        self.dtype = None if dtype is None else _element_type(dtype)
        self.identity = _checked_identity(self.dtype, identity)
        self.commute = commute
        self._bound: dict[Any, Operator] = {}

    def __repr__(self) -> str:
        return f"pyncclx.Op({self.name}, {self.dtype.name if isinstance(self.dtype, Datatype) else self.dtype})"

    def bind(self, operation: str, buffer: Buffer) -> Operator:
        """The operator for a buffer's elements.

        Raises
        ------
        ValueError
            The buffer has other elements than the operator.
        """
        dtype = buffer.datatype if self.dtype is None else self.dtype
        if isinstance(dtype, Datatype):
            self._check_datatype(operation, dtype, buffer)
        else:
            self._check_records(operation, dtype, buffer)
        if dtype not in self._bound:
            self._bound[dtype] = _operator(self.fn, dtype)
        return self._bound[dtype]

    def _check_datatype(self, operation: str, dtype: Datatype, buffer: Buffer) -> None:
        if buffer.datatype is not dtype:
            raise ValueError(f"{operation}: {self!r} reduces {dtype.name}, the arrays hold {buffer.datatype.name}")
        if getattr(getattr(buffer.owner, "dtype", None), "names", None) and self.dtype is None:
            raise ValueError(f"{operation}: the arrays hold records; give {self!r} their dtype")
        if dtype is datatypes.MOVED_ONLY["bytes"]:
            raise no_arithmetic(operation)

    def _check_records(self, operation: str, dtype: np.dtype[Any], buffer: Buffer) -> None:
        own = getattr(buffer.owner, "dtype", None)
        same = own == dtype if getattr(own, "names", None) else buffer.datatype in _OF_BYTES
        if not same and buffer.datatype is not _common_type(dtype):
            held = own or buffer.datatype.name
            raise ValueError(f"{operation}: {self!r} reduces records of {dtype}; the arrays hold {held}")
        if buffer.nbytes % dtype.itemsize:
            raise ValueError(
                f"{operation}: {buffer.nbytes} bytes are no whole number of records of {dtype.itemsize} bytes "
                f"({self!r}); give whole records"
            )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operator(LinkedFunction):
    """An `Op` for one type of elements.

    Attributes
    ----------
    group_nbytes : int
        Of the shortest run of packs that holds whole elements. 16: the kernels of MPI's operators fold them too.
    """

    group_nbytes: int

    @property
    def of_records(self) -> bool:
        """Whether kernels fold groups of packs, as those of cuda/collectives/records.cu do."""
        return self.group_nbytes != PACK_NBYTES


def named(template: tuple[str, ...]) -> Operator | None:
    """Return the operator that a kernel's template arguments name; None if it is one of ours.

    Raises
    ------
    NotSupported
        As `linked.named`.
    """
    found = linked.named(template)
    return found if isinstance(found, Operator) else None


def fitting(layout: Layout, template: tuple[str, ...]) -> Layout:
    """The layout as a kernel uses it: slots and chunks hold whole groups of elements."""
    operator = named(template)
    if operator is None or not operator.of_records:
        return layout
    group, chunk = operator.group_nbytes, layout.chunk_nbytes // operator.group_nbytes * operator.group_nbytes
    if chunk == 0:
        raise NotSupported(f"elements of {operator.types.itemsize} bytes need longer chunks; set PYNCCLX_HEAP higher")
    packets = layout.slot_nbytes // group * group * 2 // PACK_NBYTES
    return dataclasses.replace(layout, slot_packets=HEADER_PACKETS + packets, chunk_nbytes=chunk)


def no_arithmetic(operation: str) -> TypeError:
    """The exception for arrays whose elements can be moved, but not computed with."""
    return TypeError(
        f"{operation}: the arrays hold text, dates, records or other elements without arithmetic here; "
        "pass .view('i8') or the like to reduce them as numbers, or give a pyncclx.Op the dtype of records"
    )


def _operator(fn: Callable[..., Any], dtype: Datatype | np.dtype[Any]) -> Operator:
    if isinstance(dtype, Datatype):
        computed = np.dtype("f4" if dtype.name in ("float16", "bfloat16") else dtype.name)
        cxx, group = dtype.cxx, PACK_NBYTES
    else:
        computed, nbytes = _aligned(dtype), dtype.itemsize
        group = math.lcm(PACK_NBYTES, nbytes)
        if group > LONGEST_GROUP:
            raise NotSupported(f"records of {nbytes} bytes: pad them to a multiple of 16, at most {LONGEST_GROUP}")
        word = next(name for width, name in _WORDS.items() if nbytes % width == 0)
        cxx = f"Record<{nbytes}, {word}>"
    return linked.add("UserOp", lambda name: Operator(fn=fn, types=computed, template=(cxx, name), group_nbytes=group))


def _element_type(dtype: Any) -> Datatype | np.dtype[Any]:
    """A row of the table, or a structured dtype."""
    if isinstance(dtype, (list, np.dtype)) and np.dtype(dtype).names:
        return np.dtype(dtype)
    row = datatypes.of(dtype)
    if row.kind in ("pair", "opaque"):
        raise NotSupported(f"Op: dtype {row.name}; give a structured NumPy dtype, or one of the numbers")
    return row


def _checked_identity(dtype: Datatype | np.dtype[Any] | None, identity: Any) -> Any:
    if identity is None or dtype is None:
        return identity
    return np.array(identity, dtype if isinstance(dtype, np.dtype) else None)[()]


def _aligned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same layout, marked as aligned if it is: Numba then reads a field by one access."""
    fields: Mapping[str, Any] = dtype.fields or {}
    names = list(dtype.names or ())
    formats, offsets = [fields[name][0] for name in names], [fields[name][1] for name in names]
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    try:
        aligned: np.dtype[Any] = np.dtype(layout, align=True)
        return aligned
    except ValueError:  # a field lies where its type may not
        return dtype


def _common_type(dtype: np.dtype[Any]) -> Datatype | None:
    """The datatype of all fields, if they have one and leave no gaps: such records are rows of a plain array."""
    leaves = list(_leaves(dtype))
    if len(set(leaves)) != 1 or sum(leaf.itemsize for leaf in leaves) != dtype.itemsize:
        return None
    return datatypes.of(leaves[0])


def _leaves(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    if dtype.subdtype:
        base, shape = dtype.subdtype
        return _leaves(base) * math.prod(shape)
    if dtype.fields is None:
        return [dtype]
    return [leaf for name in dtype.names or () for leaf in _leaves(dtype.fields[name][0])]
