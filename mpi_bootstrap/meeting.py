"""Meetings of a communicator's ranks that end, even if some rank never comes: it may be in a call of MPI's own."""

import time

from mpi4py import MPI

from .sleeping import LONGEST_S, SHORTEST_S

_TAG = 32749  # of notes; MPI allows tags up to 32767 at least
_NOTE = b"pyncclx: waited in vain for all ranks to come here. "
_FOR_NOTES_S = 1.0
_sent: list[MPI.Request] = []  # notes of meetings that failed, which their receivers leave with MPI


class Meeting:
    """Meetings of one communicator's ranks, one after another.

    MPI matches no nonblocking collective with a blocking one. So a rank that waits here does no harm to one that is in
    a collective of MPI's own, and a rank that comes too late finds those that still wait.

    Examples
    --------
    >>> Meeting().missing(MPI.COMM_SELF, seconds=1.0)
    []
    """

    def __init__(self) -> None:
        self._waiting: MPI.Request | None = None  # of a meeting to which not all have come

    def missing(self, comm: MPI.Intracomm, seconds: float) -> list[int]:
        """Wait for all ranks to come, asleep, and return the ranks that have not. Collective.

        All ranks that have come return as soon as one of them has waited for so long.
        """
        if self._waiting is None:
            self._waiting = MPI.Comm.Ibarrier(comm)
        deadline, pause = time.monotonic() + seconds, SHORTEST_S
        while not self._waiting.Test():
            if time.monotonic() > deadline or _has_note(comm, MPI.ANY_SOURCE):
                return _without_note(comm)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_S)
        self._waiting = None
        return []


def _has_note(comm: MPI.Intracomm, source: int) -> bool:
    """Whether a rank has sent a note, which stays: a message of the program's may look like it before it is read."""
    status = MPI.Status()
    return MPI.Comm.Iprobe(comm, source, _TAG, status) and status.Get_count(MPI.BYTE) == len(_NOTE)


def _without_note(comm: MPI.Intracomm) -> list[int]:
    """Send all others a note that this rank has come, and return the ranks that send none."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    _sent.extend(MPI.Comm.Isend(comm, [_NOTE, MPI.BYTE], rank, _TAG) for rank in others)
    end = time.monotonic() + _FOR_NOTES_S
    while others and time.monotonic() < end:
        others = [rank for rank in others if not _has_note(comm, rank)]
        time.sleep(LONGEST_S)
    return others
