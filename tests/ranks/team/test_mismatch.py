"""Calls that differ among the ranks: kernels find it out, whatever the ranks wait for, and all ranks raise."""

import re
from itertools import pairwise

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import CollectiveMismatch
from support.arrays import Output, put, xp
from support.everywhere import assert_everywhere
from support.lease import set_epochs
from support.reference import comparing

WORLD = MPI.COMM_WORLD
RANKS = WORLD.size
COUNTS = [2, 3000, 400_000]  # elements of four bytes that go as packets, lines and chunks
NEXT = 2**32 - 3  # the epoch begins anew soon

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm():
    """A communicator that will be of no use any more."""
    comm = pyncclx.Communicator(WORLD.Dup())
    yield comm
    comm.Free()


def array(count, dtype="f4"):
    return put(np.arange(count).astype(dtype))


def allreduce(comm, count=100, dtype="f4", op=MPI.SUM, **options):
    x = array(count, dtype)
    comm.Allreduce(x, xp.empty_like(x), op, **options)


def reduce(comm, count=100, dtype="f4", op=MPI.SUM, root=0):
    x = array(count, dtype)
    comm.Reduce(x, xp.empty_like(x), op, root)


def scan(comm, count=100, dtype="f4", op=MPI.SUM):
    x = array(count, dtype)
    comm.Scan(x, xp.empty_like(x), op)


def reduce_scatter(comm, count=100, dtype="f4", op=MPI.SUM):
    comm.Reduce_scatter(array(count * comm.size, dtype), array(count, dtype), [count] * comm.size, op)


def reduce_scatter_block(comm, count=100, dtype="f4", op=MPI.SUM):
    comm.Reduce_scatter_block(array(count * comm.size, dtype), array(count, dtype), op)


def bcast(comm, count=100, dtype="f4", root=0):
    comm.Bcast(array(count, dtype), root)


def allgather(comm, count=100, dtype="f4"):
    comm.Allgather(array(count, dtype), array(count * comm.size, dtype))


def alltoall(comm, count=100, dtype="f4"):
    comm.Alltoall(array(count * comm.size, dtype), array(count * comm.size, dtype))


def gather(comm, count=100, dtype="f4", root=0):
    comm.Gather(array(count, dtype), array(count * comm.size, dtype), root)


def gatherv(comm, count=100, dtype="f4", root=0):
    comm.Gatherv(array(count, dtype), [array(count * comm.size, dtype), [count] * comm.size], root)


def scatter(comm, count=100, dtype="f4", root=0):
    comm.Scatter(array(count * comm.size, dtype), array(count, dtype), root)


def alltoallv(comm, count=100, dtype="f4"):
    send, recv = array(count * comm.size, dtype), array(count * comm.size, dtype)
    comm.Alltoallv([send, [count] * comm.size], [recv, [count] * comm.size])


def barrier(comm):
    comm.Barrier(device=True)


def attempt(comm, call):
    """Return what a call raises, at once or when its kernel has ended."""
    try:
        call(comm)
        comm.synchronize()
    except CollectiveMismatch as error:
        return error
    return None


def differ(comm, first, other, of_first, of_other, *, awaited=True):
    """Rank 0 makes one call and the others another: all raise, and have both calls in the text.

    If some rank awaits another's data, one raises before any makes another call. The others raise at the next one: by
    then they have been told. The kernels have been loaded before, which the ranks do together.
    """
    for call in (first, other, barrier):
        call(comm)
    comm.synchronize()
    WORLD.Barrier()
    raised = attempt(comm, first if comm.rank == 0 else other)
    at_once = any(WORLD.allgather(raised is not None))
    if raised is None:
        raised = attempt(comm, barrier)
    assert_everywhere(WORLD, raised is not None, "no mismatch")
    assert_everywhere(WORLD, at_once or not awaited, "silent at first")
    text = str(raised)
    of_first, of_other = (of[:46] for of in (of_first, of_other))  # a longer one is cut
    assert re.search(rf"call: rank 0 called {re.escape(of_first)}.*; rank \d called {re.escape(of_other)}", text), text
    with pytest.raises(CollectiveMismatch, match="disagree"):
        barrier(comm)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("call", [allreduce, reduce, scan, reduce_scatter, reduce_scatter_block])
def test_operators(comm, call, count):
    texts = [_text(call, count, "int32", op) for op in ("SUM", "MAX")]
    differ(comm, lambda c: call(c, count, "i4"), lambda c: call(c, count, "i4", MPI.MAX), *texts)


def _text(call, count, dtype, op):
    if call is reduce_scatter:
        return f"Reduce_scatter({dtype}, {op}, {[4 * count] * RANKS} bytes)"
    root = ", root 0" if call is reduce else ""
    return f"{call.__name__.capitalize()}({count}, {dtype}, {op}{root})"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("call", [allreduce, reduce, scan])
def test_types_of_elements(comm, call, count):
    texts = [_text(call, count, dtype, "SUM") for dtype in ("float32", "int32")]
    differ(comm, lambda c: call(c, count), lambda c: call(c, count, "i4"), *texts)


@pytest.mark.parametrize("other", [0, 1, 99, 3000, 400_000])
def test_counts_of_a_reduction(comm, other):
    texts = [_text(allreduce, count, "float32", "SUM") for count in (100, other)]
    differ(comm, allreduce, lambda c: allreduce(c, other), *texts)


@pytest.mark.parametrize("other", [0, 99, 30_000, 400_000])
@pytest.mark.parametrize("call", [bcast, allgather, alltoall, gather, scatter])
def test_counts_of_a_move(comm, call, other):
    """Bytes are compared: MPI.BYTE on one side and a type on the other are common."""
    name, root = call.__name__.capitalize(), "" if call in (allgather, alltoall) else ", root 0"
    texts = [f"{name}({4 * count} bytes{root})" for count in (100, other)]
    differ(comm, call, lambda c: call(c, other), *texts)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("call", [bcast, gather, scatter, reduce])
def test_roots(comm, call, count):
    """Of two ranks, both may be root to themselves, and wait for nothing: the next call finds it out."""
    name = call.__name__.capitalize()
    what = f"{count}, float32, SUM" if call is reduce else f"{4 * count} bytes"
    texts = [f"{name}({what}, root {root})" for root in (0, 1)]
    differ(comm, lambda c: call(c, count), lambda c: call(c, count, root=1), *texts, awaited=False)


OPERATIONS = {
    allreduce: "Allreduce(100, float32, SUM)",
    reduce: "Reduce(100, float32, SUM, root 0)",
    bcast: "Bcast(400 bytes, root 0)",
    allgather: "Allgather(400 bytes)",
    alltoall: "Alltoall(400 bytes)",
    gatherv: "Gatherv(root 0)",
    alltoallv: "Alltoallv(counts on the host)",
    barrier: "Barrier()",
}
PAIRS = list(pairwise([*OPERATIONS, allreduce]))


@pytest.mark.parametrize(("first", "other"), PAIRS, ids=lambda call: call.__name__)
def test_operations(comm, first, other):
    differ(comm, first, other, OPERATIONS[first], OPERATIONS[other], awaited=False)


@pytest.mark.parametrize("call", [allreduce, allgather])
def test_the_epoch_begins_anew(comm, call):
    """Hashes of earlier operations are compared with none of the new ones."""
    call(comm)
    set_epochs(comm, NEXT)
    for _ in range(6):
        call(comm)
    comm.synchronize()
    of_other = OPERATIONS[call].replace("100", "101").replace("400", "404")
    differ(comm, call, lambda c: call(c, 101), OPERATIONS[call], of_other)


def test_nonblocking_and_persistent_ones(comm):
    """On one stream, by promise; a request's kernel is launched with the same parameters again and again."""
    x, comm.ordered_starts = array(100), True
    requests = [comm.Allreduce_init(x, xp.empty_like(x), op) for op in (MPI.SUM, MPI.MAX)]

    def start(number):
        requests[number].Start()
        requests[number].Wait()

    def begin(c):
        c.Iallreduce(x, xp.empty_like(x), MPI.MIN).Wait()

    for number in (0, 1, 1, 0):
        start(number)
    texts = [f"Allreduce(100, float32, {op})" for op in ("MAX, request 2", "MIN")]
    differ(comm, lambda _: start(1), begin, *texts)


def test_one_rank_prepares_a_kernel_while_the_other_runs_one(monkeypatch):
    """The first waits on the host, where the ranks meet; both have the other's call before PYNCCLX_TIMEOUT is over."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "4")
    comm = pyncclx.Communicator(WORLD.Dup())
    allreduce(comm)
    comm.synchronize()
    WORLD.Barrier()
    raised = attempt(comm, allreduce if comm.rank == 0 else lambda c: allreduce(c, op=MPI.MAX))
    assert_everywhere(WORLD, raised is not None, "no mismatch")
    text = r"rank 0 called Allreduce\(100, float32, SUM\); rank \d called allreduce_one_shot<float, Max>"
    assert re.search(text, str(raised)), raised
    with pytest.raises(CollectiveMismatch, match=text):
        barrier(comm)
    comm.Free()


def test_other_communicators_go_on(comm):
    with pyncclx.Communicator(WORLD).Dup() as other:
        allreduce(other)
        texts = [_text(allreduce, 100, "float32", op) for op in ("SUM", "MAX")]
        differ(comm, allreduce, lambda c: allreduce(c, op=MPI.MAX), *texts)
        allreduce(other)
        other.synchronize()


def test_calls_that_MPI_allows_to_differ(comm):
    """In places, in how a buffer's bytes are divided, in datatypes of a move, and in counts of their own."""
    size, rank = comm.size, comm.rank
    mine, total = put(np.full(64, rank + 1, "f4")), Output(64, "f4")
    total.array[...] = mine
    comm.Allreduce(MPI.IN_PLACE if rank == 0 else mine, total.array)
    text, column = array(64, "u1"), xp.zeros((16, 2), "f4")
    column[:, 0] = array(16)
    comm.Bcast([array(16), MPI.FLOAT] if rank == 0 else [text, MPI.BYTE], 0)
    every_other = MPI.FLOAT.Create_vector(16, 1, 2).Commit()
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as alone:
        alone.Bcast([column, 1, every_other], 0)  # prepares the kernel that packs, which takes no meeting
    WORLD.Barrier()
    comm.Bcast([column, 1, every_other] if rank == 0 else array(16), 0)
    every_other.Free()
    blocks = xp.zeros((size, 16), "f4")
    comm.Gather(MPI.IN_PLACE if rank == 0 else array(16), blocks, 0)
    comm.Gatherv(array(rank), [array(size * size), list(range(size))], 0)
    counts = put(np.full(size, 1 + rank, "i8"))
    packed, slots = xp.zeros((size * size, 4), "f4"), xp.zeros((size, size, 4), "f4")
    sent = xp.zeros((size * (1 + rank), 4), "f4")
    if rank == 0:
        comm.Alltoallv([sent, counts], packed, layout="packed")
    else:
        comm.Alltoallv([sent, counts], slots, layout="slots")
    comm.synchronize()
    with comparing() as compare:
        compare(total, np.full(64, size * (size + 1) / 2, "f4"), "Allreduce")


def test_algorithms(comm):
    texts = [f"Allreduce(10, float32, SUM, {algorithm})" for algorithm in ("one_shot", "two_shot")]
    calls = [lambda c, name=name: allreduce(c, 10, algorithm=name) for name in ("one_shot", "two_shot")]
    differ(comm, *calls, *texts)
