"""Handshake messages ("letters") between the two ends of a partitioned message.

MPI transfers them on the program's own communicator: making another is collective, and making a partitioned request is
not. All have one tag, which messages of device arrays cannot use. So only receives and probes of any tag can match
them. These deliver the handshake message to `Letters`, and match the next message.
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
    """Return the largest tag that MPI accepts."""
    return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)


@functools.cache
def letter_tag() -> int:
    """Return the reserved tag of handshake messages, at neither end of MPI's range."""
    highest = highest_tag()
    return highest - highest // 7


# The receiver sends LOCATION: the address of its memory. The sender replies by ANSWER.
LOCATION, ANSWER = 1, 2
_BODY_NBYTES = LETTER_NBYTES - ENVELOPE_NBYTES


@dataclass(frozen=True)
class Key:
    """The key of a handshake message.

    It consists of LOCATION or ANSWER, the other rank, the tag, and the number of earlier requests with rank and tag.
    """

    kind: int
    rank: int
    tag: int
    number: int


def refusal(operation: str, error_class: int, body: bytes) -> Exception | None:
    """Return the exception that an answer describes; None if it has no text.

    Parameters
    ----------
    operation : str
    error_class : int
        MPI's error class; 0 for NotSupported.
    body : bytes
    """
    text = body.rstrip(b"\0").decode()
    if not text:
        return None
    return MPIError(error_class, f"{operation}: {text}") if error_class else NotSupported(f"{operation}: {text}")


class Correspondent(Protocol):
    """The owner of handshake messages, which has their communicator.

    Attributes
    ----------
    comm : Comm or None
        None once it has been freed.
    """

    comm: MPI.Comm | None


class Letters:
    """The handshake messages of a communicator."""

    def __init__(self, owner: Correspondent) -> None:
        # The owner refers to this object, too.
        self._owner = weakref.ref(owner)
        self._numbers: Counter[tuple[bool, int, int]] = Counter()
        # Rank to open receive, or none, and its memory.
        self._open: dict[int, tuple[list[MPI.Request], bytearray]] = {}
        # Messages that probes have matched.
        self._matched: list[MPI.Message] = []
        self._room = bytearray(LETTER_NBYTES)  # for the first of them
        self._expected: set[Key] = set()  # not arrived yet
        self._come: dict[Key, tuple[Envelope, bytes]] = {}

    def _comm(self) -> MPI.Comm:
        owner = self._owner()
        if owner is None or owner.comm is None:
            raise MPIError(MPI.ERR_COMM, "the communicator of a partitioned request has been freed")
        return owner.comm

    def keys(self, rank: int, tag: int, *, sends: bool) -> tuple[Key, Key]:
        """Return the keys of a new request's LOCATION and ANSWER.

        Both ends number their requests alike.
        """
        number = self._numbers[sends, rank, tag]
        self._numbers[sends, rank, tag] += 1
        return Key(LOCATION, rank, tag, number), Key(ANSWER, rank, tag, number)

    def send(self, key: Key, head: Envelope, body: bytes) -> None:
        """Send a handshake message to the key's rank; its head holds the key."""
        comm = self._comm()
        head = head._replace(transport=LETTER, source=comm.rank)
        head = head._replace(answer=key.kind, channel=key.number, channel_place=key.tag)
        letter = head.pack() + body[:_BODY_NBYTES].ljust(_BODY_NBYTES, b"\0")
        sending = MPI.Comm.Isend(comm, [letter, MPI.BYTE], key.rank, letter_tag())
        POSTBOX.get().receives.unsent.keep(sending, letter)

    def expect(self, key: Key) -> None:
        """Keep receives open until the handshake message of `key` has arrived.

        Call this once for each key.
        """
        with LOCK:
            if key not in self._come:
                self._expected.add(key)
                self._post(key.rank)

    def _post(self, rank: int) -> None:
        """Open a receive for a rank's next handshake message, if one is expected.

        The message may be for a request that does not exist here yet.
        """
        if any(key.rank == rank for key in self._expected):
            receiving, room = self._open.setdefault(rank, ([], bytearray(LETTER_NBYTES)))
            if not receiving:
                # No signal handler runs between MPI's call and the addition to the list.
                receiving += map(MPI.Comm.Irecv, (self._comm(),), ([room, MPI.BYTE],), (rank,), (letter_tag(),))

    def take(self, key: Key) -> tuple[Envelope, bytes] | None:
        """Return the head and the body of a handshake message; None before it arrives."""
        with LOCK:
            if key not in self._come:
                self._read(key.rank)
            return self._come.pop(key, None)

    def _read(self, rank: int) -> None:
        """Store the handshake messages of a rank that have arrived."""
        self._receive_matched()
        self._post(rank)
        receiving, room = self._open.get(rank, ([], bytearray()))
        while receiving and receiving[0].Test():
            # An interrupt may come between any two of these.
            self.deliver(room)
            receiving.clear()
            self._post(rank)

    def deliver(self, letter: Any) -> None:
        """Store a handshake message, whatever receive has matched it.

        Storing it again does no harm.
        """
        head = unpack(letter, len(letter))
        if head is not None and head.transport == LETTER:
            with LOCK:
                key = Key(head.answer, head.source, head.channel_place, head.channel)
                self._expected.discard(key)
                self._come[key] = head, bytes(letter[ENVELOPE_NBYTES:LETTER_NBYTES])

    def receive(self, message: MPI.Message) -> None:
        """Receive and store a handshake message that a probe has matched."""
        with LOCK:
            self._matched.append(message)
            self._receive_matched()

    def receive_next(self, comm: MPI.Comm, rank: int) -> None:
        """Receive and store a handshake message that a probe has found but not matched."""
        with LOCK:
            # No signal handler runs between MPI's call and the addition to the list.
            self._matched += map(MPI.Comm.Mprobe, (comm,), (rank,), (letter_tag(),))
            self._receive_matched()

    def _receive_matched(self) -> None:
        """Receive and store the messages that probes have matched."""
        while self._matched:
            # An interrupt may come between any two of these.
            if self._matched[0] != MPI.MESSAGE_NULL:
                MPI.Message.Recv(self._matched[0], [self._room, MPI.BYTE])
            self.deliver(self._room)
            self._matched.pop(0)
