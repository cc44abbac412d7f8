"""Messages that name their sender, tag and number, and peers whose memory is mapped or is not."""

import numpy as np
from mpi4py import MPI

from pyncclx.messages import bounce
from support.arrays import put, xp

WORLD = MPI.COMM_WORLD

EAGER = bounce.SLOT_NBYTES // 8  # elements of the longest message that is copied

LARGE = 3 * EAGER + 1


def told(source, tag, index, count):
    """What a message holds: every element says who sent it, with which tag, as which message, and where it is."""
    return np.arange(count, dtype="i8") + (((source + 1) << 48) + (tag << 40) + (index << 32))


def teller(values):
    """(source, tag, index) of what has arrived."""
    first = int(values[0])
    return (first >> 48) - 1, first >> 40 & 255, first >> 32 & 255


def acquaint(comm):
    """After this every rank's data stays on the device: each knows that the others can read its memory."""
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(put(np.zeros(1, "i8")), dest, 0, xp.empty(1, "i8"), source, 0)
    MPI.Comm.Barrier(comm)
    assert all(comm.endpoint.is_read_by(rank) for rank in range(comm.size))


def introduce(comm, known, monkeypatch):
    """Data stays on the device if ranks know each other; between strangers it goes through MPI."""
    if known:
        acquaint(comm)
    else:
        monkeypatch.setattr(comm.endpoint, "is_read_by", lambda rank: False)


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
