"""Files that commands write: JSON, and pictures, which take Matplotlib."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write values of JSON to a file; make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=indent) + "\n")


def pyplot() -> Any:
    """Return matplotlib.pyplot."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  optional

    return plt


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, and close it; make the file's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)
