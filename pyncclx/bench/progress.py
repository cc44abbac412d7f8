"""The progress of a long sweep, as a line on the terminal."""

from __future__ import annotations

import sys
from typing import Any

SECONDS = 5.0  # before the line appears


class Progress:
    """Prints on rank 0; tqdm, if it is installed, keeps a line on stderr, if that is a terminal."""

    def __init__(self, steps: int, rank: int) -> None:
        self._prints = rank == 0
        self._bar: Any = None
        if self._prints and sys.stderr.isatty():
            try:
                from tqdm import tqdm  # noqa: PLC0415  optional
            except ImportError:
                return
            self._bar = tqdm(total=steps, unit="size", file=sys.stderr, delay=SECONDS, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def print(self, text: str) -> None:
        """Print to stdout."""
        if self._bar is not None:
            self._bar.clear()
        if self._prints:
            print(text, flush=True)

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()
