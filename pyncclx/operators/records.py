"""Records: elements of structured dtypes, for a program's own operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import datatypes
from ..arrays.datatypes import Datatype


def cxx_type(dtype: np.dtype[Any]) -> str:
    """Return the C++ type of a record: its length, and the longest word dividing it."""
    nbytes = dtype.itemsize
    word = next(datatypes.TABLE[f"uint{8 * width}"].cxx for width in (8, 4, 2, 1) if nbytes % width == 0)
    return f"Record<{nbytes}, {word}>"


def aligned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype of the same layout, marked as aligned if it is.

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
