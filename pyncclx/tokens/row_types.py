"""The types that tokens have, there and on their way."""

from __future__ import annotations

from typing import Any

import numpy as np

FLOAT8 = "float8_e4m3"
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, FLOAT8: 1}
# Types that tokens of a type can have on their way, and their C++ names.
ROW_TYPES = {
    "float32": ("float32", "float16", "bfloat16", FLOAT8),
    "float16": ("float16", FLOAT8),
    "bfloat16": ("bfloat16", FLOAT8),
}
CXX = {"float32": "float", "float16": "Half", "bfloat16": "Bfloat16", FLOAT8: "Float8"}


def array_type(name: str) -> Any:
    """NumPy's dtype for a type of tokens or rows; of unsigned integers where NumPy has none.

    That is so of 8-bit floats, whatever ml_dtypes has registered: its float8_e4m3 is another type, with infinities.
    """
    try:
        return np.dtype("u1" if name == FLOAT8 else name)
    except TypeError:
        return np.dtype(f"u{ITEMSIZE[name]}")
