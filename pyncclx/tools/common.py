"""Helpers that commands share: files of JSON, pictures, versions of packages."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write content as JSON to a file; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=indent) + "\n")


def pyplot() -> Any:
    """Return matplotlib.pyplot."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  optional

    return plt


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, and close the figure; create the file's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first distribution that is installed, or None."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
