"""The first messages between two ranks with partitioned requests.

MPI transfers these messages on the program's communicator, because the creation of another communicator is collective.
So receives and probes of the program with MPI.ANY_TAG could match them. But MPI matches a message with the receive that
was posted first. So the library posts receives for its own messages before such a call of the program. A rank sends at
most `_MOST` of these messages to another rank, so receives are posted once.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from mpi4py import MPI

import mpi_bootstrap

from ...arrays import places
from ...errors import MPIError
from ...requests.open_receives import LOCK
from ...system import driver
from ...system.mpi_library import ended_before_finalize
from ..envelope import ENVELOPE_NBYTES, Envelope, unpack
from ..progress.polling import PROGRESS

# The receiver sends the location of its board, the sender a reason if it cannot open the board.
LOCATION, REFUSAL = 1, 2
_MOST = 2  # messages from one rank: a location and a refusal
_NBYTES = ENVELOPE_NBYTES + 512  # length of a message, at most
# Posted receives of deleted communicators, with their memory.
_LOST: list[tuple[MPI.Request, bytearray]] = []


def freed() -> MPIError:
    """Return the error for a handshake after its communicator has been freed."""
    return MPIError(MPI.ERR_COMM, "the communicator of a partitioned request has been freed")


@functools.cache
def highest_tag() -> int:
    """Return the largest tag that MPI accepts."""
    return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)


@functools.cache
def contact_tag() -> int:
    """Return the reserved tag of these messages, inside MPI's range of tags."""
    highest = highest_tag()
    return highest - highest // 7


class Contacts:
    """Messages by which partitioned requests of a communicator find each other.

    MPI transfers them. A message contains the location of a board, or the reason why a rank cannot open a board.

    Attributes
    ----------
    guarded : set of int
        Sources (MPI.ANY_SOURCE or ranks) for which this rank has posted receives of these messages. The program's
        receives with MPI.ANY_TAG from a guarded source cannot match them.
    is_predefined : bool
        Whether the communicator is COMM_WORLD or COMM_SELF, which a program may use after `free`.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm: MPI.Comm | None = MPI.Comm(comm)
        self.is_predefined = comm in (MPI.COMM_WORLD, MPI.COMM_SELF)
        self._is_inter, self._rank = comm.is_inter, comm.rank
        self._size = cast(MPI.Intercomm, comm).remote_size if comm.is_inter else comm.size
        with LOCK:
            _LOST[:] = [(request, room) for request, room in _LOST if not _has_ended(request)]
        self.guarded: set[int] = set()
        # Rank to open receives with their memory.
        self._open: dict[int, list[tuple[MPI.Request, bytearray]]] = {}
        # Messages that have arrived, by rank and kind.
        self._come: dict[tuple[int, int], tuple[Envelope, bytes]] = {}

    @property
    def is_closed(self) -> bool:
        """Whether no message of the communicator can arrive any more."""
        return self._comm is None

    def guard(self, source: int) -> None:
        """Post receives, so that later ones with MPI.ANY_TAG match no internal message."""
        sources = range(self._size) if source == MPI.ANY_SOURCE else (source,)
        if places.host_arrays() or driver.is_there():  # otherwise there are no device arrays
            self._post(sources)
        self.guarded.update((source, *sources))

    def expect(self, rank: int) -> None:
        """Post receives for a rank's messages."""
        if rank not in self._open:
            self._post((rank,))

    @mpi_bootstrap.interrupts_deferred()
    def _post(self, ranks: Iterable[int]) -> None:
        with LOCK:
            for rank in ranks:
                # A rank's messages to itself are not transferred.
                is_other = self._is_inter or rank != self._rank
                if self._comm is not None and is_other and 0 <= rank < self._size and rank not in self._open:
                    self._open[rank] = self._receives(rank)
            if self._open:
                _FINALIZED.get().add(self)

    def _receives(self, rank: int) -> list[tuple[MPI.Request, bytearray]]:
        assert self._comm is not None
        begun: list[tuple[MPI.Request, bytearray]] = []
        try:
            for room in (bytearray(_NBYTES) for _ in range(_MOST)):
                begun.append((MPI.Comm.Irecv(self._comm, [room, MPI.BYTE], rank, contact_tag()), room))
        except MPI.Exception:
            _LOST.extend(begun)
            raise
        return begun

    @mpi_bootstrap.interrupts_deferred()
    def send(self, rank: int, kind: int, head: Envelope, body: bytes = b"") -> None:
        """Send a message of a kind to a rank; call this once for each rank and kind."""
        if self._comm is None:
            raise freed()
        message = head._replace(answer=kind).pack() + body
        if rank == self._rank and not self._is_inter:
            self._store(rank, message)
            return
        self.expect(rank)
        sending = MPI.Comm.Isend(self._comm, [message, MPI.BYTE], rank, contact_tag())
        PROGRESS.get().pending_sends.keep(sending, message)

    def take(self, rank: int, kind: int) -> tuple[Envelope, bytes] | None:
        """Return head and body of a rank's message of a kind; None before it arrives."""
        with LOCK:
            for request, room in self._open.get(rank, ()):
                # The receives of a rank that has failed end with errors.
                with suppress(MPI.Exception):
                    # A null request is complete. MPI calls no error handler for it, because it is not tested.
                    if (rank, kind) not in self._come and (not request or request.Test()):
                        self._store(rank, bytes(room))
            return self._come.get((rank, kind))

    def _store(self, rank: int, message: bytes) -> None:
        head = unpack(message, len(message))
        if head is not None:
            self._come[rank, head.answer] = head, message[ENVELOPE_NBYTES:]

    @mpi_bootstrap.interrupts_deferred()
    def close(self) -> None:
        """Cancel the open receives; call this after all messages have been received."""
        with LOCK:
            self._comm = None
            self.guarded.clear()
            self._come.clear()
            while self._open:
                _, posted = self._open.popitem()
                # Skip null requests: for their Cancel, MPI calls an error handler, which may abort the program.
                for request, _ in filter(operator.itemgetter(0), posted):
                    with suppress(MPI.Exception):
                        request.Cancel()
                        request.Wait()

    def leave(self) -> None:
        """Keep the receives open, because MPI is deleting the communicator."""
        self._comm = None
        _LOST.extend(itertools.chain.from_iterable(self._open.values()))


def _has_ended(request: MPI.Request) -> bool:
    """Complete a receive if a message has matched it; return whether it has ended."""
    try:
        return not request or request.Test()
    except MPI.Exception:
        return True


_FINALIZED = ended_before_finalize(Contacts.close)
