"""Messages that name their sender, tag and number, and peers whose memory is mapped or is not."""

import numpy as np
from mpi4py import MPI

from pyncclx.messages import bounce
from support.arrays import put, xp
from support.reference import NODES

WORLD = MPI.COMM_WORLD

EAGER = bounce.SLOT_NBYTES // 8  # elements of the longest message that is copied

LARGE = 3 * EAGER + 1


def data_of(source, tag, index, count):
    """The data of a message: each element contains its sender, tag, number of the message, and index."""
    return np.arange(count, dtype="i8") + (((source + 1) << 48) + (tag << 40) + (index << 32))


def label_of(values):
    """(source, tag, index) of data that has arrived."""
    first = int(values[0])
    return (first >> 48) - 1, first >> 40 & 255, first >> 32 & 255


def map_peers(comm):
    """From now on messages stay on the device: every rank has mapped the memory of all others on its node."""
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(put(np.zeros(1, "i8")), dest, 0, xp.empty(1, "i8"), source, 0)
    MPI.Comm.Barrier(comm)
    assert NODES or all(comm.endpoint.peers.is_reader(rank) for rank in range(comm.size))


def map_peers_if(comm, mapped, monkeypatch):
    """Messages stay on the device if `mapped`; otherwise they go through MPI."""
    if mapped:
        map_peers(comm)
    else:
        monkeypatch.setattr(comm.endpoint.peers, "readers", frozenset())
        monkeypatch.setattr(comm.endpoint.peers, "is_reader", lambda rank: False)
