"""The sides of a call: buffer, peer and tag of its send, and of its receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arrays.buffers import Buffer
from .envelope import inline_nbytes
from .memory.bounce import SLOT_NBYTES

_SYNCHRONOUS = ("Ssend", "Issend", "Ssend_init")


@dataclass(slots=True)
class Side:
    """The send or receive side of a call, before any checks.

    Attributes
    ----------
    buf : array, buffer spec or Buffer
    rank : int
        Destination or source.
    tag : int
    name : str
        Name of the argument, for error messages.
    """

    buf: Any
    rank: int
    tag: int
    name: str = "buf"


@dataclass(slots=True)
class Plan:
    """A side after all checks, which can be cached for calls with equal arguments.

    Attributes
    ----------
    operation : str
    buffer : Buffer
        In a cached plan it keeps no array alive; each message keeps its own.
    rank, tag : int
    facts : bytes
        Packed fields of the message's entry in the flight recorder.
    of_current : bool or None
        Whether the current stream may still be writing the buffer; None if not known.
    record : callable or None
        Writes the entry of a send that is free at once; created at the first such send.
    nbytes : int
    room_nbytes : int
        Largest size of MPI's message, with an envelope.
    is_short : bool
        Whether there is data and it fits into a slot of the bounce memory.
    is_synchronous : bool
        Whether it is a send that is complete only when it has been matched.
    is_free_at_once : bool
        Whether the stream's next work may reuse the buffer of a send, without the receiver.
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
