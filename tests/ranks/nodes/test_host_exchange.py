"""Short collectives over nodes go through the host's memory: with the bits of the other ways, and with their errors."""

import re
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.nodes.host_exchange import host_waits, most_nbytes
from pyncclx.nodes.spanning import Spanning
from pyncclx.nodes.step_monitor import PAUSE_S
from support.arrays import Output, put, xp
from support.everywhere import assert_everywhere
from support.reference import comparing, contributions

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {"in turn": RANK % 2, "unequal": min(RANK, 1), "unequal, in turn": int(RANK % 3 > 0), "alone": RANK}
MOST_NBYTES = most_nbytes(SIZE)
pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(request, monkeypatch):
    """A communicator over pretend nodes, of a layout that a test names or the first."""
    monkeypatch.setenv("PYNCCLX_NODE", str(LAYOUTS[getattr(request, "param", "in turn")]))
    comm = pyncclx.Communicator().Dup()
    comm.blocking = "host"
    yield comm
    comm.synchronize()
    comm.Free()


def reductions(comm, x, op):
    """The results of Allreduce, of Reduce on the last rank, and of both forms of Reduce_scatter."""
    everywhere, at_root = Output(x.size, x.dtype), Output(x.size, x.dtype)
    counts = [x.size // SIZE + (rank < x.size % SIZE) for rank in range(SIZE)]
    own, block = Output(counts[RANK], x.dtype), Output(x.size // SIZE, x.dtype)
    comm.Reduce_scatter(put(x), own.array, counts, op)
    comm.Reduce_scatter_block(put(x[: x.size // SIZE * SIZE]), block.array, op)
    comm.Allreduce(put(x), everywhere.array, op)
    comm.Reduce(put(x), at_root.array, op, SIZE - 1)
    comm.synchronize()
    return everywhere, at_root, own, block


@pytest.mark.parametrize("comm", LAYOUTS, indirect=True)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32"])
def test_the_bits_are_those_of_long_ones(comm, name, monkeypatch):
    """With the way of longer calls as the oracle, which tests/ranks/collectives hold to NumPy."""
    op, other = pyncclx.AVG if name == "float16" else MPI.SUM, comm.Dup()
    with comparing() as compare:
        for count in (1, 37, MOST_NBYTES // 4):
            x = contributions(SIZE, count, name)[RANK]
            results = reductions(comm, x, op)
            with monkeypatch.context() as patch:
                patch.setattr(Spanning, "is_short", lambda self, nbytes: False)
                for own, expected in zip(results, reductions(other, x, op), strict=True):
                    compare(own, expected.read(), f"{count} elements")
    assert comm.spanning._host_exchange is not None
    assert other.spanning._host_exchange is None
    other.Free()


def test_what_explain_says(comm):
    """Of the longest short call and the next one."""
    of_all = ("Allreduce", "Iallreduce", "Reduce", "Bcast", "Allgather")
    of_each = ("Alltoall", "Reduce_scatter_block", "Reduce_scatter")
    limits = dict.fromkeys(of_all, MOST_NBYTES) | dict.fromkeys(of_each, MOST_NBYTES // SIZE)
    for operation, nbytes in limits.items():
        assert "pinned memory of the host" in comm.explain(operation, nbytes)
        assert "pinned memory of the host" not in comm.explain(operation, nbytes + 1)
    assert "pinned memory of the host" in comm.explain("Barrier", 0)


def test_with_nccl_they_need_calls_of_all_ranks_that_wait():
    assert host_waits(WORLD, "host", uses_nccl=True)
    for streams in range(SIZE):
        assert not host_waits(WORLD, "stream" if streams == RANK else "host", uses_nccl=True)


@pytest.mark.parametrize("comm", ["alone"], indirect=True)
def test_many_calls_one_after_the_other(comm):
    """Of ranks that come at different times: records are not overwritten before they have been read."""
    x, y, blocks = xp.empty(5, "i8"), Output(5, "i8"), Output(5 * SIZE, "i8")
    sent, inplace = xp.empty(3 * SIZE, "i8"), Output(3 * SIZE, "i8")
    with comparing() as compare:
        for call in range(60):
            root = call % SIZE
            x[...] = put(np.arange(5) + 100 * RANK + 10_000 * call)
            comm.Bcast(x, root)
            compare(x, np.arange(5) + 100 * root + 10_000 * call, f"Bcast {call}")
            comm.Reduce(x, y.array, MPI.SUM, root)
            if root == RANK:
                compare(y, SIZE * (np.arange(5) + 100 * root + 10_000 * call), f"Reduce {call}")
            comm.Allgather(x, blocks.array)
            compare(blocks, np.tile(np.arange(5) + 100 * root + 10_000 * call, SIZE), f"Allgather {call}")
            sent[...] = inplace.array[:] = put(np.arange(3 * SIZE) + 100 * RANK + 10_000 * call)
            arrived = [100 * rank + 10_000 * call + 3 * RANK + np.arange(3) for rank in range(SIZE)]
            comm.Alltoall(sent, blocks.array[: 3 * SIZE])
            compare(blocks.array[: 3 * SIZE], np.concatenate(arrived), f"Alltoall {call}")
            comm.Alltoall(MPI.IN_PLACE, inplace.array)
            compare(inplace, np.concatenate(arrived), f"Alltoall in place {call}")


@pytest.mark.parametrize("comm", ["alone"], indirect=True)
def test_a_communicator_that_is_freed_at_once(comm):
    """While the texts of its last calls are kept for others to be sent with: no thread sends them any more."""
    x, y = put(np.full(3, RANK + 1.0, "f8")), Output(3, "f8")
    with comparing() as compare:
        for number in range(5):
            own = comm.Dup()
            for _ in range(4):
                own.Allreduce(x, y.array)
            own.Free()
            compare(y, np.full(3, SIZE * (SIZE + 1) / 2), f"communicator {number}")
    time.sleep(5 * PAUSE_S)


def test_calls_that_differ(comm, monkeypatch):
    """On all ranks, with both calls in the text; from then on at every call."""
    comm.Allreduce(xp.ones(3, "f4"), xp.empty(3, "f4"))
    own, raised = comm.Dup(), []
    own.Allreduce(xp.ones(3, "f4"), xp.empty(3, "f4"))
    for _ in range(2):
        try:
            own.Allreduce(xp.ones(3, "f4"), xp.empty(3, "f4"), MPI.MAX if RANK == 0 else MPI.SUM)
            own.synchronize()
        except pyncclx.CollectiveMismatch as error:
            raised.append(str(error))
    both = re.compile(r"called Allreduce\(3, 'float32', '\w+'\); rank \d called Allreduce\(3")
    assert_everywhere(WORLD, len(raised) == 2 and both.search(raised[0]) is not None, f"rank {RANK}: {raised}")
    own.state.abandon()


def test_a_rank_that_has_left(comm):
    """What came from it is not used: the others raise at their next call."""
    own = comm.Dup()
    own.Allreduce(xp.ones(3, "f4"), xp.empty(3, "f4"))
    if RANK == SIZE - 1:
        own.spanning.host_exchange._errors = type("Failed", (), {"has_failed": True})
    raised = None
    try:
        own.Allreduce(xp.ones(3, "f4"), xp.empty(3, "f4"))
        own.synchronize()
    except pyncclx.Aborted as error:
        raised = str(error)
    expected = RANK == SIZE - 1 or f"rank {SIZE - 1} have failed" in (raised or "")
    assert_everywhere(WORLD, expected, f"rank {RANK}: {raised}")
    own.state.abandon()


@pytest.mark.ranks(3)
def test_root_goes_on_in_a_kernel(monkeypatch):
    """Root has given MPI all its records before a kernel of its node waits, for ranks that still need them."""
    monkeypatch.setenv("PYNCCLX_NODE", "low" if RANK < 2 else "high")
    comm = pyncclx.Communicator().Dup()
    node = comm.Split(int(RANK >= 2), RANK)
    total = Output(3, "i4")
    node.Allreduce(put(np.ones(3, "i4")), total.array)
    comm.Bcast(put(np.ones(3, "i4")), 0)
    if RANK:
        time.sleep(0.5)  # more records than any MPI takes before their receiver looks
    with comparing() as compare:
        for number in range(1500):
            data = Output(3, "i4")
            if RANK == 0:
                data.array[:] = number
            comm.Bcast(data.array, 0)
            if number % 100 == 0:
                compare(data, np.full(3, number, "i4"), f"Bcast {number}")
        node.Allreduce(put(np.ones(3, "i4")), total.array)
        node.synchronize()
        compare(total, np.full(3, node.size, "i4"), "in the node")
    node.Free()
    comm.Free()
