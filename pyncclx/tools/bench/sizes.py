"""Message sizes of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator


def parse_nbytes(text: str) -> int:
    """Return the bytes of "8", "64K", "256M" or "1G"."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if not match:
        raise SystemExit(f"{text!r} is no size; give bytes, or a number with K, M or G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def steps(first_nbytes: int, last_nbytes: int, *, factor: int = 2, difference: int = 0) -> Iterator[int]:
    """Yield the sizes from the first to the last, by factor or by difference.

    A difference of 0 means the factor.
    """
    nbytes = first_nbytes
    while nbytes <= last_nbytes:
        yield nbytes
        nbytes = nbytes + difference if difference else nbytes * factor
