"""The types of tokens, and of the rows that carry them."""

from __future__ import annotations

from typing import Any

import numpy as np

FLOAT8 = "float8_e4m3"
GROUP = 128  # 8-bit floats with one scale: kGroup of cuda/elements/cast.cuh
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, FLOAT8: 1}
# Possible types of rows, by the type of tokens.
ROW_TYPES = {
    "float32": ("float32", "float16", "bfloat16", FLOAT8),
    "float16": ("float16", FLOAT8),
    "bfloat16": ("bfloat16", FLOAT8),
}
CXX = {"float32": "float", "float16": "Half", "bfloat16": "Bfloat16", FLOAT8: "Float8"}


def array_type(name: str) -> Any:
    """Return NumPy's dtype for a type of tokens or rows.

    Where NumPy has none, it is one of unsigned integers.

    8-bit floats are always uint8: the float8_e4m3 that ml_dtypes registers is another type, with infinities.
    """
    try:
        return np.dtype("u1" if name == FLOAT8 else name)
    except TypeError:
        return np.dtype(f"u{ITEMSIZE[name]}")
