"""Notes: messages to the other ranks, sent by a rank that has left a rendezvous."""

from contextlib import suppress

from mpi4py import MPI

from .freeing import Tested
from .polls import poll

_TAG = 32749  # tag of notes; MPI allows tags up to 32767 at least
UNUSED_TAG = 32748  # a tag that no message has
_NOTE = b"pyncclx: meets the ranks of this communicator no more. "  # the reason follows
# Reasons: the sender's wait timed out; the sender came too late; a signal handler raised during the sender's wait.
LEFT, LATE, INTERRUPTED = b"l", b"o", b"i"
_NOTE_NBYTES = len(_NOTE) + 1

_sent: list[Tested] = []  # requests of notes


def has_note(comm: MPI.Comm, source: int, status: MPI.Status | None = None) -> bool:
    """Return whether a note has arrived; leave it for `take_note` to receive."""
    if not isinstance(comm, MPI.Intracomm):  # a simulated communicator
        return False
    status = status or MPI.Status()
    has_message = poll(lambda: MPI.Comm.Iprobe(comm, source, _TAG, status))
    return has_message and status.Get_count(MPI.BYTE) == _NOTE_NBYTES


def take_note(comm: MPI.Comm, source: int) -> tuple[int, bytes] | None:
    """Receive a note; return its sender and the reason, or None if none has arrived."""
    status = MPI.Status()
    if not has_note(comm, source, status):
        return None
    note = bytearray(_NOTE_NBYTES)
    MPI.Comm.Recv(comm, note, status.source, _TAG)
    return status.source, bytes(note[-1:])


def send_notes(comm: MPI.Comm, reason: bytes) -> None:
    """Tell the other ranks that this rank has left."""
    if isinstance(comm, MPI.Intracomm):
        for rank in range(comm.size):
            if rank != comm.rank:
                with suppress(MPI.Exception):  # the rank has failed, or the communicator is revoked
                    _sent.append(MPI.Comm.Isend(comm, [_NOTE + reason, MPI.BYTE], rank, _TAG))
