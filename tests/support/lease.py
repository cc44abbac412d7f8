"""The counters in a communicator's lease: read them, and set them near the end of their range."""

import weakref

import numpy as np
from mpi4py import MPI

import pyncclx
from pyncclx.memory.layout import CALLS_NBYTES, CHANNEL_NBYTES, HEADER_NBYTES, MAX_RANKS, RINGS, Layout
from support.arrays import get, memory_at, put, synchronize

LANES = 2  # kLanes: lanes of a chain
CHANNEL = np.dtype(  # ChannelControl of cuda/protocol/layout.cuh
    {
        "names": ["calls", "epoch", "all_entered", "entered", "head", "tail"],
        "formats": ["u4", "u4", "u4", ("u8", MAX_RANKS), ("u8", (RINGS, MAX_RANKS)), ("u8", (RINGS, MAX_RANKS))],
        "offsets": [0, 4, 8, 16, 16 + 8 * MAX_RANKS, 16 + 8 * (1 + RINGS) * MAX_RANKS],
        "itemsize": CHANNEL_NBYTES,
    }
)


_OF_RANK_0 = weakref.WeakKeyDictionary()  # by what communicators over nodes have


def layout_of(comm: pyncclx.Intracomm) -> Layout:
    """What lies where in the communicator's lease; over nodes, in rank 0's node. Collective at the first use."""
    spanning = comm.spanning
    if spanning is None:
        return comm.team.layout
    if spanning not in _OF_RANK_0:
        _OF_RANK_0[spanning] = MPI.Comm.bcast(comm, spanning.team.layout)
    return _OF_RANK_0[spanning]


def _channels(comm: pyncclx.Intracomm):
    team = comm.team
    address = team.heap.memory.address + team.lease.offset + HEADER_NBYTES + CALLS_NBYTES
    return memory_at(address, team.layout.channels * CHANNEL_NBYTES)


def epochs(comm: pyncclx.Intracomm) -> list[int]:
    """The number of the last operation of each channel."""
    return get(_channels(comm)).view(CHANNEL)["epoch"].tolist()


def set_epochs(comm: pyncclx.Intracomm, epoch: int) -> None:
    """Go on as if every rank had finished operation `epoch` on every channel. Collective."""
    channels = _channels(comm)
    synchronize()
    super(pyncclx.Intracomm, comm).Barrier()
    control = get(channels).view(CHANNEL)
    control["calls"] = 0
    control["epoch"] = control["all_entered"] = epoch
    control["entered"] = epoch << 32
    control["head"] = control["tail"] = epoch << 32
    channels[...] = put(control.view(np.uint8))
    synchronize()
    super(pyncclx.Intracomm, comm).Barrier()
