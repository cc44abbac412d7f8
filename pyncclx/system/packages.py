"""Versions of installed packages, by distribution name."""

from __future__ import annotations

from importlib import metadata


def version(*distributions: str) -> str | None:
    """Return the version of the first distribution that is installed, or None."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
