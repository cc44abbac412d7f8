"""A program's operator for one type of elements, to be linked into kernels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.datatypes import Datatype
from ..errors import NotSupported
from ..memory.layout import HEADER_PACKETS, PACK_NBYTES, Layout
from . import linked, records
from .linked import LinkedFunction, computed

# Bytes of records that one thread folds at once in its registers, of which it has some hundred. Not measured.
LONGEST_GROUP_NBYTES = 1024


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundOp(LinkedFunction):
    """An `Op` for one type of elements.

    Attributes
    ----------
    group_nbytes : int
        Length of the shortest run of packs that holds whole elements. If it is 16, the kernels of MPI's operators fold
        the elements, too.
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
    return records.aligned(dtype), records.cxx_type(dtype), group_nbytes


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
