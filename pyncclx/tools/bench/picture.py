"""Pictures drawn by Matplotlib, which only --plot needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Return matplotlib.pyplot."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  optional

    return plt


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)


def wire_label(limit_gbs: float) -> str:
    """Return the label of the line for the wire's bandwidth."""
    return f"wire, {limit_gbs:g} GB/s nominal"
