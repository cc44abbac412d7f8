"""Which algorithm for which length: tables that `python -m pyncclx tune` has measured, one for each kind of device.

A table says, for a number of ranks and a kernel, how long a message may be in bytes for the kernel to be chosen; of the
kernels of an operation the first that may is. The operations' own rules stand where there is no table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..system.paths import cache_directory

Limits = tuple[tuple[str, int], ...]  # kernel, bytes

#: The ladders: an operation's algorithms, for short messages first. The last takes what is left.
LADDERS = {
    "allreduce": ("one_shot", "two_shot_lines", "two_shot"),
    "reduce": ("one_shot", "two_shot_lines", "two_shot", "chain"),
    "bcast": ("direct", "two_shot_lines", "chain"),
    "scan": ("one_shot", "two_shot"),
}


def limits(device: str, size: int) -> Limits:
    """What is known of a kind of device, such as "NVIDIA H200", and a number of ranks: measured here, or shipped.

    Raises
    ------
    ValueError
        If a table cannot be read.
    """
    for folder in (cache_directory(), Path(__file__).parent):
        path = folder / file_name(device)
        if path.exists():
            try:
                found: dict[str, int] = json.loads(path.read_text())["limits"].get(str(size), {})
                return tuple((str(kernel), int(nbytes)) for kernel, nbytes in found.items())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                text = f"{path} is not a table of limits ({error}); remove it, or make it anew: python -m pyncclx tune"
                raise ValueError(text) from error
    return ()


def file_name(device: str) -> str:
    """Of the table of a kind of device."""
    return f"tuned-{device.replace(' ', '-')}.json"


def read(path: Path) -> dict[str, Any]:
    """A table, or a new one."""
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"environment": {}, "limits": {}}
    return table
