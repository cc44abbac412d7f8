"""The sides of a call: what it sends and where to, what it receives and where from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.buffers import Buffer


@dataclass(slots=True)
class Side:
    """One side of a call, as the program gave it.

    Attributes
    ----------
    buf : array, buffer spec or Buffer
    rank : int
        Destination or source.
    tag : int
    name : str
        Of the argument, for errors.
    """

    buf: Any
    rank: int
    tag: int
    name: str = "buf"


@dataclass(slots=True)
class ResolvedSide:
    """A side after all checks.

    Attributes
    ----------
    buffer : Buffer
    stream : stream
        To work on.
    rank, tag : int
    """

    buffer: Buffer
    stream: Any
    rank: int
    tag: int
