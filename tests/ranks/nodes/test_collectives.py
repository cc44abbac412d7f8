"""Collectives over pretend nodes, whatever the assignment of ranks to them, against mpi4py's.

The tests of tests/ranks/collectives run over pretend nodes, too: `python tests/run.py nodes`.
"""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.nodes import requests
from support.arrays import Output, put
from support.reference import comparing

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
SIZES = (17, 3_001, 20_000)  # elements: a few, some packets, and vectors whose pieces are long
LAYOUTS = {  # the node of each rank
    "halves": [2 * rank // SIZE for rank in range(SIZE)],
    "in turn": [rank % 2 for rank in range(SIZE)],
    "one rank each": list(range(SIZE)),
    "unequal": [min(rank, 1) for rank in range(SIZE)],
    "unequal, in turn": [int(rank % 3 > 0) for rank in range(SIZE)],
}
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(scope="module", params=LAYOUTS)
def comm(request):
    """A communicator over pretend nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_NODE", str(LAYOUTS[request.param][RANK]))
        comm = pyncclx.Communicator().Dup()
        assert comm.spanning.places.count == len(set(LAYOUTS[request.param]))
        yield comm
        comm.Free()


def data(count, dtype="f4", call=0):
    """Which element of which rank in which call; sums of a few are exact in all types."""
    return ((np.arange(count) * 7 + RANK * 31 + call * 13) % 101).astype(dtype)


def check(compare, count, dtype, call, what):
    """Compare what `call` writes to an output for pyncclx with what it writes for mpi4py."""
    own, expected = Output(count, dtype), np.full(count * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)
    call(own.array, put)
    call(expected, lambda values: values)
    compare(own, expected, what)


def both(comm):
    """The communicator, and mpi4py's with its handle, by the type of the receive buffer."""
    plain = MPI.Intracomm(comm)
    return lambda place: plain if place is not put else comm


def reductions(of, count, call, op):
    """By name: elements of the output, and what writes it."""
    x, blocks, root = data(count, "i8", call), data(count * SIZE, "i8", call), call % SIZE
    counts = [(count + 3 * rank) % (count + 5) for rank in range(SIZE)]
    uneven = data(sum(counts), "i8")
    return {
        "Allreduce": (count, lambda out, at: of(at).Allreduce(at(x), out, op)),
        "Reduce": (count, lambda out, at: of(at).Reduce(at(x), out, op, root)),
        "Scan": (count, lambda out, at: of(at).Scan(at(x), out, op)),
        "Exscan": (count, lambda out, at: of(at).Exscan(at(x), out, op)),
        "Reduce_scatter_block": (count, lambda out, at: of(at).Reduce_scatter_block(at(blocks), out, op)),
        "Reduce_scatter": (counts[RANK], lambda out, at: of(at).Reduce_scatter(at(uneven), out, counts, op)),
    }


def movements(of, count, call):
    """The same for operations that move data."""
    x, blocks, root = data(count, call=call), data(count * SIZE, call=call), (call + 1) % SIZE
    counts = [(count + 2 * rank) % (count + 3) for rank in range(SIZE)]
    own, all_blocks = data(counts[RANK], call=call), data(sum(counts), call=call)
    sent = [(count + RANK + 2 * rank) % (count + 3) for rank in range(SIZE)]
    got = [(count + rank + 2 * RANK) % (count + 3) for rank in range(SIZE)]
    at_root = count * SIZE if root == RANK else 0
    return {
        "Gather": (at_root, lambda out, at: of(at).Gather(at(x), out, root)),
        "Gatherv": (sum(counts), lambda out, at: of(at).Gatherv(at(own), [out, counts], root)),
        "Scatter": (count, lambda out, at: of(at).Scatter(at(blocks), out, root)),
        "Scatterv": (counts[RANK], lambda out, at: of(at).Scatterv([at(all_blocks), counts], out, root)),
        "Allgather": (count * SIZE, lambda out, at: of(at).Allgather(at(x), out)),
        "Allgatherv": (sum(counts), lambda out, at: of(at).Allgatherv(at(own), [out, counts])),
        "Alltoall": (count * SIZE, lambda out, at: of(at).Alltoall(at(blocks), out)),
        "Alltoallv": (sum(got), lambda out, at: of(at).Alltoallv([at(data(sum(sent))), sent], [out, got])),
    }


@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAX, MPI.BXOR], ids=["SUM", "MAX", "BXOR"])
def test_reductions(comm, op):
    with comparing() as compare:
        for call, count in enumerate(SIZES):
            for name, (length, do) in reductions(both(comm), count, call, op).items():
                check(compare, length, "i8", do, f"{name} of {count}")


def test_movements(comm):
    with comparing() as compare:
        for call, count in enumerate(SIZES):
            for name, (length, do) in movements(both(comm), count, call).items():
                check(compare, length, "f4", do, f"{name} of {count}")


def test_bcast_from_every_rank(comm):
    with comparing() as compare:
        for root in range(SIZE):
            for count in SIZES:
                buffer = Output(count, "f4")
                expected = ((np.arange(count) * 7 + root * 31) % 101).astype("f4")
                if root == RANK:
                    buffer.fill(expected)
                comm.Bcast(buffer.array, root)
                compare(buffer, expected, f"root {root}, count {count}")


def test_in_place_again_and_later(comm):
    """Equal calls are cached; nonblocking and persistent ones run aside."""
    with comparing() as compare:
        for count in SIZES:
            expected = sum(((np.arange(count) * 7 + rank * 31) % 101).astype("f4") for rank in range(SIZE))
            x = put(data(count))
            for call in range(2):
                recv = Output(count, "f4")
                comm.Iallreduce(x, recv.array).Wait()
                compare(recv, expected, f"count {count}, call {call}")
            recv = Output(count, "f4")
            request = comm.Allreduce_init(x, recv.array)
            for call in range(2):
                recv.poison()
                request.Start()
                request.Wait()
                compare(recv, expected, f"count {count}, start {call}")
            for call in range(1, 3):
                comm.Allreduce(MPI.IN_PLACE, x)
                compare(x, expected * SIZE ** (call - 1), f"count {count}, in place {call}")


def test_all_ranks_have_the_same_bits(comm):
    """Whatever the order of the fold, it is one for all."""
    x = np.random.default_rng(RANK).standard_normal(20_000).astype("f4")
    recv = Output(x.size, "f4")
    for count in (100, x.size):
        comm.Allreduce(put(x[:count]), recv.array[:count])
        results = WORLD.allgather(recv.read()[:count].tobytes())
        assert len(set(results)) == 1


def test_average_counts_all_ranks(comm):
    recv = Output(999, "f8")
    comm.Allreduce(put(data(999, "f8")), recv.array, pyncclx.AVG)
    expected = sum(((np.arange(999) * 7 + rank * 31) % 101).astype("f8") for rank in range(SIZE)) / SIZE
    assert np.allclose(recv.read(), expected, rtol=1e-15)


def test_explained(comm):
    places = comm.spanning.places
    text = comm.explain("Allreduce", 8)
    assert text.startswith("native: ")
    assert f"{SIZE} ranks on {places.count} nodes" in text
    assert "between nodes" in text
    comm.Barrier(device=True)
    comm.Ibarrier(device=True).Wait()


def test_a_nonblocking_call_that_came_before_is_not_composed_again(comm, monkeypatch):
    """Its results are those of the arrays as they are now, whatever lies between the calls."""
    send, blocks, column = put(data(60)), put(data(60 * SIZE)), MPI.FLOAT.Create_vector(6, 1, 2).Commit()
    reduced, exchanged, spread = Output(60, "f4"), Output(60 * SIZE, "f4"), Output(12, "f4")
    for turn in range(5):
        root = turn % 2 * (SIZE - 1)
        values = data(60, call=turn), data(60 * SIZE, call=turn), data(12, call=turn)
        send[...], blocks[...], spread.array[...] = (put(each) for each in values)
        with monkeypatch.context() as patch:
            if turn >= 3:  # the first two have other roots, and the first reads the datatype
                patch.setattr(requests, "compose", refuse)
            pending = [
                comm.Iallreduce(send, reduced.array, op=MPI.MAX),
                comm.Ialltoall(blocks, recvbuf=exchanged.array),
                comm.Ibcast([spread.array, 1, column], root=root),
            ]
            pyncclx.Request.Waitall(pending)
        comm.synchronize()
        expected = np.empty(60, "f4"), np.empty(60 * SIZE, "f4"), values[2].copy()
        MPI.Comm.Allreduce(WORLD, values[0], expected[0], MPI.MAX)
        MPI.Comm.Alltoall(WORLD, values[1], expected[1])
        MPI.Comm.Bcast(WORLD, [expected[2], 1, column], root)
        with comparing() as compare:
            for own, oracle in zip((reduced, exchanged, spread), expected, strict=True):
                compare(own, oracle, f"turn {turn}")
    column.Free()
    monkeypatch.setattr(requests, "compose", refuse)
    with pytest.raises(AssertionError):
        comm.Iallreduce(send, reduced.array, op=MPI.MIN)


def refuse(*args, **kwargs):
    raise AssertionError("the call was looked at")
