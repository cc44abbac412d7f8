"""Letters: short messages of MPI by which the two ends of a partitioned message find each other.

They travel on the program's own communicator, for another one would be made by all its ranks, and making a partitioned
request is no collective call. Their tags are the highest, downwards, so that they meet no receive of the program's but
one of MPI.ANY_TAG that has been posted before the request.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Protocol

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..requests.open_receives import LOCK
from .envelope import ENVELOPE_NBYTES, LETTER, Envelope, unpack
from .postbox import POSTBOX

LOCATION, ANSWER = 1, 2  # from the receiver to the sender: where its memory is; and what comes back
_BODY_NBYTES = 2 * ENVELOPE_NBYTES
NBYTES = ENVELOPE_NBYTES + _BODY_NBYTES


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

    @property
    def highest_tag(self) -> int:
        """The largest tag that MPI takes."""


class Letters:
    """The letters of a communicator."""

    def __init__(self, owner: Correspondent) -> None:
        self._owner = weakref.ref(owner)  # which has them
        self._numbers: Counter[tuple[bool, int, int]] = Counter()
        self._open: defaultdict[tuple[int, int], list[tuple[MPI.Request, bytearray]]] = defaultdict(list)
        self._come: dict[Key, tuple[Envelope, bytes]] = {}

    def _comm_and_tag(self, key: Key) -> tuple[MPI.Comm, int]:
        owner = self._owner()
        if owner is None or owner.comm is None:
            raise MPIError(MPI.ERR_COMM, "the communicator of a partitioned request has been freed")
        return owner.comm, owner.highest_tag - key.tag

    def keys(self, rank: int, tag: int, *, sends: bool) -> tuple[Key, Key]:
        """Return the keys of the letters of one more request: LOCATION and ANSWER. Both ends count alike."""
        number = self._numbers[sends, rank, tag]
        self._numbers[sends, rank, tag] += 1
        return Key(LOCATION, rank, tag, number), Key(ANSWER, rank, tag, number)

    def send(self, key: Key, head: Envelope, body: bytes) -> None:
        """Send a letter to the key's rank; the head's transport, answer and channel are set here."""
        head.transport, head.answer, head.channel = LETTER, key.kind, key.number
        letter = head.pack() + body[:_BODY_NBYTES].ljust(_BODY_NBYTES, b"\0")
        comm, tag = self._comm_and_tag(key)
        POSTBOX.get().receives.unsent.keep(MPI.Comm.Isend(comm, [letter, MPI.BYTE], key.rank, tag), letter)

    def expect(self, key: Key) -> None:
        """Receive one more letter from the key's rank with its tag; call it once for each."""
        room = bytearray(NBYTES)
        comm, tag = self._comm_and_tag(key)
        request = MPI.Comm.Irecv(comm, [room, MPI.BYTE], key.rank, tag)
        self._open[key.rank, key.tag].append((request, room))

    def take(self, key: Key) -> tuple[Envelope, bytes] | None:
        """Return the head and the body of a letter; None if it has not come."""
        with LOCK:
            if key not in self._come:
                self._read(key.rank, key.tag)
            return self._come.pop(key, None)

    def _read(self, rank: int, tag: int) -> None:
        still_open = []
        for request, room in self._open.pop((rank, tag), ()):
            if not request.Test():
                still_open.append((request, room))
                continue
            head = unpack(room, len(room))
            if head is not None and head.transport == LETTER:  # else a message of the program's with this tag
                self._come[Key(head.answer, rank, tag, head.channel)] = head, bytes(room[ENVELOPE_NBYTES:])
        if still_open:
            self._open[rank, tag] = still_open
