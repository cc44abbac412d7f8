"""Letters: short messages of MPI by which the two ends of a partitioned message find each other.

They travel on the program's own communicator, for another one would be made by all its ranks, and making a partitioned
request is no collective call. They all have one tag, which the program's messages with device arrays cannot have. So
only what takes any tag can meet a letter: it hands the letter over, and goes on.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..requests.open_receives import LOCK
from .envelope import ENVELOPE_NBYTES, LETTER, LETTER_NBYTES, Envelope, unpack
from .postbox import POSTBOX


@functools.cache
def highest_tag() -> int:
    """Return the largest tag that MPI takes."""
    return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)


@functools.cache
def letter_tag() -> int:
    """Return the tag of letters, which programs do without: none of those at the ends of MPI's range."""
    highest = highest_tag()
    return highest - highest // 7


LOCATION, ANSWER = 1, 2  # from the receiver to the sender: where its memory is; and what comes back
_BODY_NBYTES = LETTER_NBYTES - ENVELOPE_NBYTES


@dataclass(frozen=True)
class Key:
    """Which letter: LOCATION or ANSWER; the other rank; the tag, and how many requests with it were made before."""

    kind: int
    rank: int
    tag: int
    number: int


def refusal(operation: str, error_class: int, body: bytes) -> Exception | None:
    """Return the exception for an answer; None if there is no text in it.

    Parameters
    ----------
    operation : str
    error_class : int
        MPI's; 0 for NotSupported.
    body : bytes
    """
    text = body.rstrip(b"\0").decode()
    if not text:
        return None
    return MPIError(error_class, f"{operation}: {text}") if error_class else NotSupported(f"{operation}: {text}")


class Correspondent(Protocol):
    """Whose letters they are.

    Attributes
    ----------
    comm : Comm or None
        None once it has been freed.
    """

    comm: MPI.Comm | None


class Letters:
    """The letters of a communicator."""

    def __init__(self, owner: Correspondent) -> None:
        self._owner = weakref.ref(owner)  # which has them
        self._numbers: Counter[tuple[bool, int, int]] = Counter()
        self._open: dict[int, tuple[MPI.Request, bytearray]] = {}  # the receive for a rank's next letter
        self._expected: set[Key] = set()  # those that have not come
        self._come: dict[Key, tuple[Envelope, bytes]] = {}

    def _comm(self) -> MPI.Comm:
        owner = self._owner()
        if owner is None or owner.comm is None:
            raise MPIError(MPI.ERR_COMM, "the communicator of a partitioned request has been freed")
        return owner.comm

    def keys(self, rank: int, tag: int, *, sends: bool) -> tuple[Key, Key]:
        """Return the keys of the letters of one more request: LOCATION and ANSWER. Both ends count alike."""
        number = self._numbers[sends, rank, tag]
        self._numbers[sends, rank, tag] += 1
        return Key(LOCATION, rank, tag, number), Key(ANSWER, rank, tag, number)

    def send(self, key: Key, head: Envelope, body: bytes) -> None:
        """Send a letter to the key's rank, with the key in its head."""
        head = head._replace(transport=LETTER, answer=key.kind, channel=key.number, channel_place=key.tag)
        letter = head.pack() + body[:_BODY_NBYTES].ljust(_BODY_NBYTES, b"\0")
        sending = MPI.Comm.Isend(self._comm(), [letter, MPI.BYTE], key.rank, letter_tag())
        POSTBOX.get().receives.unsent.keep(sending, letter)

    def expect(self, key: Key) -> None:
        """Receive letters from the key's rank until this one has come; call it once for each."""
        with LOCK:
            if key not in self._come:
                self._expected.add(key)
                self._post(key.rank)

    def _post(self, rank: int) -> None:
        """Keep a receive open for a rank's next letter, which may be for a request that does not exist here yet."""
        if rank not in self._open and any(key.rank == rank for key in self._expected):
            room = bytearray(LETTER_NBYTES)
            self._open[rank] = MPI.Comm.Irecv(self._comm(), [room, MPI.BYTE], rank, letter_tag()), room

    def take(self, key: Key) -> tuple[Envelope, bytes] | None:
        """Return the head and the body of a letter; None if it has not come."""
        with LOCK:
            if key not in self._come:
                self._read(key.rank)
            return self._come.pop(key, None)

    def _read(self, rank: int) -> None:
        """Keep the letters of a rank that have come."""
        while rank in self._open and self._open[rank][0].Test():
            _, room = self._open.pop(rank)
            self.deliver(rank, room)
            self._post(rank)

    def deliver(self, rank: int, letter: Any) -> None:
        """Keep a letter of a rank, also one that a receive of any tag has met."""
        head = unpack(letter, len(letter))
        if head is not None and head.transport == LETTER:
            with LOCK:
                key = Key(head.answer, rank, head.channel_place, head.channel)
                self._expected.discard(key)
                self._come[key] = head, bytes(letter[ENVELOPE_NBYTES:LETTER_NBYTES])

    def receive(self, message: MPI.Message, rank: int) -> None:
        """Receive and keep a letter that a probe has matched."""
        room = bytearray(LETTER_NBYTES)
        MPI.Message.Recv(message, [room, MPI.BYTE])
        self.deliver(rank, room)
