"""Arguments of calls over nodes."""

from __future__ import annotations

from ...errors import NotSupported


def check_no_choice(operation: str, algorithm: str | None) -> None:
    """Raise NotSupported if an algorithm is chosen: it names a kernel inside a node."""
    if algorithm is not None:
        raise NotSupported(
            f"{operation}: algorithm={algorithm!r} names a kernel inside one node, and the ranks are on several; leave "
            "it out"
        )
