"""Tables of algorithms by message length, measured by `python -m pyncclx tune`.

There is one table for each kind of device. For each number of ranks and each kernel, it has a limit: the longest
message, in bytes, for which the kernel is chosen. An operation tries its kernels in a fixed order, and uses the first
one whose limit allows the message. Without a table, the built-in limits of the operations apply.

A file ``tuned-DEVICE.json`` has two members. "limits" has the limits, by number of ranks and kernel. "environment" has
device, date, program and versions of the measurement, by number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..system.cache_folders import cache_directory

Limits = tuple[tuple[str, int], ...]  # kernel, nbytes

#: Algorithm tables of the operations that `tune` measures: the algorithms from short messages to long ones. The last
#: one has no limit. The operations' own tables (collectives/) are on a higher layer.
ALGORITHMS = {
    "allreduce": ("one_shot", "two_shot_lines", "two_shot"),
    "reduce": ("one_shot", "two_shot_lines", "chain_lines", "two_shot", "chain"),
    "bcast": ("direct", "two_shot_lines", "chain_lines", "chain"),
    "scan": ("one_shot", "two_shot"),
}


def limits(device: str, size: int) -> Limits:
    """Return the limits for a device, such as "NVIDIA H200", and a number of ranks.

    A table in the cache folder, measured on this machine, replaces a shipped one. If there is no table, the result is
    empty.

    Raises
    ------
    ValueError
        If the table cannot be read.
    """
    for folder in _folders():
        path = folder / file_name(device)
        if path.exists():
            try:
                found: dict[str, int] = read(path)["limits"].get(str(size), {})
                return tuple((str(kernel), int(nbytes)) for kernel, nbytes in found.items())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                text = f"{path} is not a table of limits ({error}); remove it, or make it anew: python -m pyncclx tune"
                raise ValueError(text) from error
    return ()


def provenance() -> Iterator[str]:
    """Yield a line for each table: device, numbers of ranks, dates and file."""
    for path in (path for folder in _folders() for path in sorted(folder.glob(file_name("*")))):
        try:
            measured = sorted(read(path)["environment"].values(), key=lambda about: int(about["ranks"]))
            dates = ", ".join(f"{about['ranks']} ranks on {about['date']}" for about in measured)
            yield f"{measured[0]['device']}: {dates} ({path})"
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            yield f"{path}: without the device and date of its measurement"


def file_name(device: str) -> str:
    """Return the file name of the table for a kind of device."""
    return f"tuned-{device.replace(' ', '-')}.json"


def read(path: Path) -> dict[str, Any]:
    """Return the content of a table; an empty table if the file does not exist."""
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"environment": {}, "limits": {}}
    return table


def _folders() -> tuple[Path, ...]:
    return cache_directory(), Path(__file__).parent
