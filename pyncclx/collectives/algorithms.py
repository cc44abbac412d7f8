"""The names that `algorithm` can have, of operations whose own kernel needs none."""

from __future__ import annotations

from ..numba_kernels import calls as numba

COPY_ENGINE = "copy_engine"
NUMBA = numba.NAME


def check_algorithm(operation: str, algorithm: str | None, *names: str) -> None:
    """Raise ValueError unless `algorithm` is one of the names, or None for the operation's own kernel."""
    if algorithm is not None and algorithm not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"{operation}: algorithm is {algorithm!r}; it can be {known}, or None for the kernel")
