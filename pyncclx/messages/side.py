"""The sides of a call: what it sends and where to, what it receives and where from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arrays.buffers import Buffer
from .bounce import SLOT_NBYTES
from .envelope import inline_nbytes

_SYNCHRONOUS = ("Ssend", "Issend", "Ssend_init")


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
        A cached plan's keeps no memory: each message keeps its own array.
    rank, tag : int
    facts : bytes
        Of the message's entry in the flight recorder.
    of_current : bool or None
        Whether the current stream may still be making the buffer; None: not known.
    record : callable or None
        Writes the entry of a send that is free at once; made at the first one.
    nbytes : int
    room_nbytes : int
        As long as the message of MPI's may be, with an envelope.
    is_short : bool
        Whether there are data, for which a slot of the bounce memory has room.
    is_synchronous : bool
        Whether it is a send that is over only when it has been matched.
    is_free_at_once : bool
        Whether what the stream does next may use the buffer of a send again, which waits for nobody.
    """

    operation: str
    buffer: Buffer
    rank: int
    tag: int
    facts: bytes
    of_current: bool | None = None
    record: Callable[[], None] | None = None
    nbytes: int = field(init=False)
    room_nbytes: int = field(init=False)
    is_short: bool = field(init=False)
    is_synchronous: bool = field(init=False)
    is_free_at_once: bool = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = nbytes = self.buffer.nbytes
        self.room_nbytes, fits = inline_nbytes(nbytes), nbytes <= SLOT_NBYTES
        self.is_short, self.is_synchronous = fits and nbytes > 0, self.operation in _SYNCHRONOUS
        self.is_free_at_once = fits and not self.is_synchronous
