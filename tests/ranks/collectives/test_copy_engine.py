"""Collectives by the copy engines, into windows."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import NotSupported
from support.arrays import put
from support.everywhere import raises_everywhere
from support.lease import layout_of
from support.reference import comparing, contributions

pytestmark = pytest.mark.one_node

COUNTS = (1, 37, 5003)
ROOM = 64  # elements before an array, in which it begins elsewhere on each rank


class Memory:
    """A window, and arrays in it."""

    def __init__(self, comm, elements):
        self.comm, self.window = comm, comm.Alloc(elements + 2 * ROOM, "i8")

    def output(self, count, fill=-1):
        self.window[:] = -1
        self.begin = self.comm.rank % 3
        array = self.window[self.begin : self.begin + count]
        array[:] = put(np.broadcast_to(np.asarray(fill, "i8"), count))
        return array

    def damage(self, count):
        """Whether there is something beside the array."""
        before, after = self.window[: self.begin], self.window[self.begin + count :]
        return bool((before != -1).any() or (after != -1).any())


@pytest.fixture
def calls(comm):
    """The memory, and a comparison of all calls in the end."""
    with comparing() as compare:
        yield Memory(comm, comm.size * max(COUNTS)), compare


@pytest.mark.parametrize("in_place", [False, True])
def test_allgather(comm, calls, in_place):
    memory, compare = calls
    for call, count in enumerate(COUNTS):
        vectors = contributions(comm.size, count, "int64", call=call)
        recv, mine = memory.output(comm.size * count), vectors[comm.rank]
        if in_place:
            recv[comm.rank * count : (comm.rank + 1) * count] = put(mine)
        comm.Allgather(MPI.IN_PLACE if in_place else put(mine), recv, algorithm="copy_engine")
        compare(recv, np.concatenate(vectors), f"count {count}")
        assert not memory.damage(comm.size * count), f"count {count}"


def test_alltoall(comm, calls):
    memory, compare = calls
    for call, count in enumerate(COUNTS):
        vectors = contributions(comm.size, comm.size * count, "int64", call=call)
        recv = memory.output(comm.size * count)
        comm.Alltoall(put(vectors[comm.rank]), recv, algorithm="copy_engine")
        blocks = [vector[comm.rank * count : (comm.rank + 1) * count] for vector in vectors]
        compare(recv, np.concatenate(blocks), f"count {count}")
        assert not memory.damage(comm.size * count), f"count {count}"


def test_bcast(comm, calls):
    memory, compare = calls
    for call, count in enumerate(COUNTS):
        for root in range(comm.size):
            data = contributions(comm.size, count, "int64", call=call)[root]
            buffer = memory.output(count, data if comm.rank == root else -2)
            comm.Bcast(buffer, root, algorithm="copy_engine")
            compare(buffer, data, f"count {count}, root {root}")
            assert not memory.damage(count), f"count {count}, root {root}"


def test_other_forms(comm, calls):
    """Requests, and a persistent one whose data change from start to start."""
    memory, compare = calls
    count = COUNTS[-1]
    first, *later = (contributions(comm.size, count, "int64", call=call) for call in range(4))
    send, recv = put(first[comm.rank]), memory.output(comm.size * count)
    comm.Iallgather(send, recv, algorithm="copy_engine").Wait()
    compare(recv, np.concatenate(first), "Iallgather")
    request = comm.Allgather_init(send, recv, algorithm="copy_engine")
    for start, vectors in enumerate(later):
        send[:] = put(vectors[comm.rank])
        request.Start()
        request.Wait()
        compare(recv.copy(), np.concatenate(vectors), f"start {start}")
    request.Free()


def test_back_to_back(comm, calls):
    """Each replaces what the one before brought, and was read on the same stream."""
    memory, compare = calls
    recv, kept = memory.output(comm.size * 37), []
    every = [contributions(comm.size, 37, "int64", call=call) for call in range(20)]
    for vectors in every:
        comm.Allgather(put(vectors[comm.rank]), recv, algorithm="copy_engine")
        kept.append(recv.copy())
    for call, (vectors, result) in enumerate(zip(every, kept, strict=True)):
        compare(result, np.concatenate(vectors), f"call {call}")


def test_preference(comm, calls):
    """`sm_free` takes the engines for long messages in windows, and kernels for all others."""
    _, compare = calls
    long = layout_of(comm).packet_nbytes // 8 + 1
    window = comm.Alloc(comm.size * long, "i8")
    comm.sm_free = True
    try:
        assert "copy engines" in comm.explain("Allgather", long * 8)
        assert "copy engines" not in comm.explain("Allgather", 8)
        vectors = contributions(comm.size, long, "int64")
        elsewhere = put(np.full(comm.size * long, -1))
        for recv, where in ((window, "in a window"), (elsewhere, "elsewhere")):
            comm.Allgather(put(vectors[comm.rank]), recv)
            compare(recv, np.concatenate(vectors), where)
        comm.Bcast(elsewhere if comm.rank else window)
        compare(elsewhere if comm.rank else window, np.concatenate(vectors), "Bcast, not all in windows")
        assert comm.Dup().sm_free
    finally:
        comm.sm_free = False


def test_refusals(comm):
    """On all ranks alike, and the communicator goes on."""
    window, elsewhere = comm.Alloc(comm.size, "i8"), put(np.zeros(comm.size, "i8"))
    recv = elsewhere if comm.rank == comm.size - 1 else window
    with raises_everywhere(comm, NotSupported, match=f"rank {comm.size - 1}'s is in no window"):
        comm.Allgather(window[:1], recv, algorithm="copy_engine")
    with raises_everywhere(comm, ValueError, match="algorithm is 'ring'; it can be 'copy_engine'"):
        comm.Alltoall(window, recv, algorithm="ring")
    with raises_everywhere(comm, NotSupported, match="only the kernel works in place"):
        comm.Alltoall(MPI.IN_PLACE, window, algorithm="copy_engine")
    comm.Allgather(put(np.array([comm.rank])), recv)
    with comparing() as compare:
        compare(recv, np.arange(comm.size), "afterwards")
