"""Messages that name their sender, tag and number, and peers whose memory is mapped or is not."""

import time

import numpy as np
from mpi4py import MPI

from pyncclx.messages.memory import bounce
from support.arrays import put, xp
from support.everywhere import assert_everywhere
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


def unread(comm):
    """The places of this rank's messages that are not known to have been read, or declined."""
    bounce, numbers = comm.endpoint.context.bounce, comm.endpoint.peers.numbers
    pools = bounce.slots, bounce.tickets
    return [place for number in numbers for pool in pools for place in pool.held_for(number)]


def assert_all_read(comm):
    """All ranks' messages have been read, or will be soon. Collective."""
    end = time.monotonic() + 5
    while unread(comm) and time.monotonic() < end:
        comm.endpoint.context.receives.pending_sends.sweep()
        time.sleep(0.001)
    assert_everywhere(comm, not unread(comm), f"places {unread(comm)} are held")


def end_unread(comm):
    """End this rank's messages that a test leaves unread, as those to a rank that has failed."""
    for number in comm.endpoint.peers.numbers:
        comm.endpoint.context.bounce.end_sends(number)
