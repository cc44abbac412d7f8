"""Installed packages, by the names of their distributions."""

from __future__ import annotations

from importlib import metadata


def version(*distributions: str) -> str | None:
    """Return the version of the first distribution that is installed."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
