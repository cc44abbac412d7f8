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
class Plan:
    """A side after all checks: what an equal call need not find out again.

    Attributes
    ----------
    operation : str
    buffer : Buffer
        Of a plan that is remembered, it keeps no memory: each message keeps its own array.
    rank, tag : int
    nbytes : int
    room_nbytes : int
        As long as the message of MPI's may be, with an envelope.
    facts : bytes
        Of the message's entry in the flight recorder.
    of_current : bool or None
        Whether the current stream may still be making the buffer; None: not known.
    """

    operation: str
    buffer: Buffer
    rank: int
    tag: int
    nbytes: int
    room_nbytes: int
    facts: bytes
    of_current: bool | None = None
