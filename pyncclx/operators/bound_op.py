"""A program's operator for one type of elements, to be linked into kernels.

Elements may be records, those of structured dtypes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import datatypes
from ..arrays.datatypes import Datatype
from ..errors import NotSupported
from ..memory.layout import HEADER_PACKETS, PACK_NBYTES, Layout
from . import linked
from .linked import LinkedFunction, computed

# Most bytes of records that a thread folds at once, to fit its registers (some hundred). Not measured.
LONGEST_GROUP_NBYTES = 1024


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundOp(LinkedFunction):
    """An `Op` for one type of elements.

    Attributes
    ----------
    group_nbytes : int
        Length of the shortest run of packs that holds whole elements. If it is 16, the kernels of MPI's operators can
        fold the elements too.
    """

    group_nbytes: int

    @property
    def of_records(self) -> bool:
        """Whether kernels fold groups of packs, like those of cuda/collectives/records.cu."""
        return self.group_nbytes != PACK_NBYTES


def bound_op(fn: Callable[..., Any], dtype: Datatype | np.dtype[Any]) -> BoundOp:
    """Bind a function to elements of a datatype, or to records."""
    types, cxx, group_nbytes = _number(dtype) if isinstance(dtype, Datatype) else _record(dtype)
    return linked.add(
        "UserOp", lambda name: BoundOp(fn=fn, types=types, template=(cxx, name), group_nbytes=group_nbytes)
    )


def _number(datatype: Datatype) -> tuple[np.dtype[Any], str, int]:
    return computed(datatype), datatype.cxx, PACK_NBYTES


def _record(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], str, int]:
    group_nbytes = math.lcm(PACK_NBYTES, dtype.itemsize)
    if group_nbytes > LONGEST_GROUP_NBYTES:
        raise NotSupported(
            f"records of {dtype.itemsize} bytes: pad them to a multiple of 16, at most {LONGEST_GROUP_NBYTES}"
        )
    return _aligned(dtype), _cxx_type(dtype), group_nbytes


def named(template: tuple[str, ...]) -> BoundOp | None:
    """Return the operator named by a kernel's template arguments; None if built in.

    Raises
    ------
    NotSupported
        Raised by `linked.named`.
    """
    found = linked.named(template)
    return found if isinstance(found, BoundOp) else None


def fitting(layout: Layout, template: tuple[str, ...]) -> Layout:
    """Return a layout whose slots and chunks hold whole groups of packs."""
    operator = named(template)
    if operator is None or not operator.of_records:
        return layout
    group, chunk = operator.group_nbytes, layout.chunk_nbytes // operator.group_nbytes * operator.group_nbytes
    if chunk == 0:
        raise NotSupported(f"elements of {operator.types.itemsize} bytes need longer chunks; set PYNCCLX_HEAP higher")
    packets = layout.slot_nbytes // group * group * 2 // PACK_NBYTES
    return dataclasses.replace(layout, slot_packets=HEADER_PACKETS + packets, chunk_nbytes=chunk)


def _cxx_type(dtype: np.dtype[Any]) -> str:
    """Return a record's C++ type, made of its length and the longest word dividing it."""
    nbytes = dtype.itemsize
    word = next(datatypes.TABLE[f"uint{8 * width}"].cxx for width in (8, 4, 2, 1) if nbytes % width == 0)
    return f"Record<{nbytes}, {word}>"


def _aligned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype of the same layout, marked as aligned if its fields are.

    Numba reads a field of an aligned dtype by one access.
    """
    fields: Mapping[str, Any] = dtype.fields or {}
    names = list(dtype.names or ())
    formats, offsets = [fields[name][0] for name in names], [fields[name][1] for name in names]
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    try:
        marked: np.dtype[Any] = np.dtype(layout, align=True)
        return marked
    except ValueError:  # unaligned field
        return dtype


def common_type(dtype: np.dtype[Any]) -> Datatype | None:
    """Return the datatype of all fields; None if they differ or leave gaps.

    Records with one datatype are rows of a plain array.
    """
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
